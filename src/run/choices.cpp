#include "run/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "backend/conv/autotuner.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

Autotuner& tuner() { return Autotuner::of(Autotuner::default_file()); }

/// "12 timed now, 30 known; kept in FILE".
std::string describe_origins(const std::vector<Choice>& choices) {
  const auto count = [&](ChoiceOrigin origin) {
    return std::ranges::count_if(choices,
                                 [&](const Choice& choice) { return choice.origin == origin; });
  };
  std::vector<std::string> parts;
  if (const auto timed = count(ChoiceOrigin::kMeasured); timed > 0) {
    parts.push_back(fmt::format("{} timed now", timed));
  }
  if (const auto known = count(ChoiceOrigin::kFile); known > 0) {
    parts.push_back(fmt::format("{} known", known));
  }
  if (const auto ruled = count(ChoiceOrigin::kRule); ruled > 0) {
    parts.push_back(fmt::format("{} by a fixed rule, because {}", ruled, Autotuner::why_no_file()));
  }
  if (const auto forced = count(ChoiceOrigin::kForced); forced > 0) {
    parts.push_back(fmt::format("{} forced by LOCKSTEP_CONVOLUTION", forced));
  }
  if (const auto adopted = count(ChoiceOrigin::kAdopted); adopted > 0) {
    parts.push_back(fmt::format("{} as process 0", adopted));
  }
  std::string text = fmt::format("{}", fmt::join(parts, ", "));
  if (count(ChoiceOrigin::kMeasured) + count(ChoiceOrigin::kFile) == 0) return text;
  const std::string file = tuner().file().string();
  if (tuner().all_kept()) return fmt::format("{}; kept in {}", text, file);
  return fmt::format("{}; {} cannot be written, so that another run may choose otherwise", text,
                     file);
}

}  // namespace

Json describe_choices() {
  Json all = Json::array();
  for (const Choice& choice : tuner().choices()) {
    all.push_back({{"machine", choice.machine},
                   {"problem", choice.problem},
                   {"choice", choice.chosen},
                   {"milliseconds", choice.milliseconds},
                   {"origin", to_string(choice.origin)}});
  }
  return all;
}

std::optional<std::string> summarize_choices() {
  const std::vector<Choice> choices = tuner().choices();
  if (choices.empty()) return std::nullopt;
  std::map<std::string, int> counts;
  for (const Choice& choice : choices) ++counts[choice.chosen];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} by {}", count, name));
  return fmt::format("{} ({})", fmt::join(parts, ", "), describe_origins(choices));
}

std::vector<int> follow_first_process(World& world) {
  const auto told = world.to_others([] { return describe_choices().dump(); });
  const Json first = told ? Json::parse(*told) : Json::array();  // process 0 is at one with itself
  std::vector<Choice> others;
  std::string forced;
  for (const Choice& own : tuner().choices()) {
    for (const Json& choice : first) {
      if (choice.at("machine") != own.machine || choice.at("problem") != own.problem) continue;
      if (choice.at("choice") == own.chosen) continue;
      others.push_back(own);
      others.back().chosen = choice.at("choice");
      others.back().milliseconds = choice.at("milliseconds");
      if (own.origin == ChoiceOrigin::kForced) forced = own.chosen;
    }
  }
  if (!forced.empty()) {
    throw ConfigError(concat("LOCKSTEP_CONVOLUTION=", forced,
                             " is not what process 0 computes with; give all processes the same "
                             "(mpirun -x LOCKSTEP_CONVOLUTION)"));
  }
  tuner().adopt(others);
  std::vector<int> counts;
  for (const std::string& count : world.all_gather(std::to_string(others.size()))) {
    counts.push_back(std::stoi(count));
  }
  return counts;
}

std::optional<std::string> changed_choices(const fs::path& environment) {
  std::ifstream stream(environment);
  const Json earlier = Json::parse(stream, nullptr, false);
  std::map<std::string, std::string> before;
  try {
    for (const Json& choice : earlier.at("choices")) {
      before[choice.value("problem", "")] = choice.value("choice", "");
    }
  } catch (const Json::exception&) {  // not there, or not what we write
    return std::nullopt;
  }
  int changed = 0;
  std::string first;
  for (const Choice& choice : tuner().choices()) {
    const auto found = before.find(choice.problem);
    if (found == before.end() || found->second == choice.chosen) continue;
    if (changed++ == 0) {
      first = fmt::format("{} by {} in place of {}", choice.problem, choice.chosen, found->second);
    }
  }
  if (changed == 0) return std::nullopt;
  return fmt::format(
      "{} convolutions are computed by other implementations than when the run began ({}): it goes "
      "on, but not to the bits that it would have ended with",
      changed, first);
}

}  // namespace lockstep
