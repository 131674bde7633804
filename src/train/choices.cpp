#include "train/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "backend/autotuner.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

Autotuner& tuner() { return Autotuner::of(Autotuner::default_file()); }

/// "12 timed now, 30 known; kept in FILE".
std::string describe_origins(const std::vector<Choice>& choices) {
  const auto count = [&](ChoiceOrigin origin) {
    return std::count_if(choices.begin(), choices.end(),
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
    parts.push_back(fmt::format("{} by a fixed rule, because LOCKSTEP_AUTOTUNE is empty", ruled));
  }
  if (const auto forced = count(ChoiceOrigin::kForced); forced > 0) {
    parts.push_back(fmt::format("{} forced by LOCKSTEP_CONVOLUTION", forced));
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

std::optional<std::string> changed_choices(const fs::path& environment) {
  std::ifstream stream(environment);
  const Json earlier = Json::parse(stream, nullptr, false);
  if (!earlier.is_object() || !earlier.contains("choices")) return std::nullopt;
  std::map<std::string, std::string> before;
  for (const Json& choice : earlier.at("choices")) {
    before[choice.value("problem", "")] = choice.value("choice", "");
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
