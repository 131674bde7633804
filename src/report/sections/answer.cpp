#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "report/sections/sections.h"

namespace lockstep {
namespace {

std::string count_of(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// A difference, told from the higher mode's side.
struct Told {
  std::string higher, lower;
  double by = 0;
  std::optional<Interval> interval;
};

Told tell(const PairedDifference& pair) {
  const double mean = pair.spread.mean;
  if (mean >= 0) return {pair.a, pair.b, mean, pair.interval};
  Told told{pair.b, pair.a, -mean, pair.interval};
  if (told.interval) told.interval = Interval{-pair.interval->high, -pair.interval->low};
  return told;
}

std::string evidence(const Told& told, const PairedDifference& pair, std::size_t pairs) {
  std::string text;
  if (told.interval) {
    text =
        fmt::format("95 % interval {:+.2f} to {:+.2f}, ", told.interval->low, told.interval->high);
  }
  text += count_of(pair.seeds.size(), "seed");
  if (pair.p_value) text += fmt::format(", p = {:.3g}", *pair.p_value);
  if (pairs > 1 && pair.p_holm) {
    text += fmt::format(", with {} differences tested {:.3g}", pairs, *pair.p_holm);
  }
  return text;
}

// The mode that the project is about against the one that everyone has.
std::size_t main_pair(const Comparison& comparison) {
  for (std::size_t i = 0; i < comparison.pairs.size(); ++i) {
    const PairedDifference& pair = comparison.pairs[i];
    const auto is = [&](const char* a, const char* b) { return pair.a == a && pair.b == b; };
    if (is("sync", "local") || is("local", "sync")) return i;
  }
  return 0;
}

void add_single(const ReportData& data, Page& page) {
  const RunRecord& run = data.runs.front();
  if (!data.comparison) {
    page.headline(describe_runs(data) + ": not finished");
    if (!run.train_loss.empty()) {
      page.paragraph(fmt::format("{:.0f} steps so far, training loss {:.4g}",
                                 run.train_loss.back().at, run.train_loss.back().value));
    }
    return;
  }
  const ModeResult& mode = data.comparison->modes.front();
  const MeanSpread& score = mode.score_spread;
  if (score.count == 0) return page.headline(describe_runs(data) + ": no score");
  std::string text = fmt::format("{}: {} {:.2f}", describe_runs(data), data.score(), score.mean);
  if (score.standard_deviation) {
    text += fmt::format(" ± {:.2f}, {}", *score.standard_deviation,
                        count_of(static_cast<std::size_t>(score.count), "seed"));
  }
  page.headline(text);
}

}  // namespace

std::string describe_runs(const ReportData& data) {
  const RunRecord& run = data.runs.front();
  return data.runs.size() == 1 ? fmt::format("{}, seed {}", run.mode, run.seed) : run.mode;
}

Verdict verdict(const PairedDifference& pair, std::size_t pairs) {
  if (!pair.unscored.empty()) {
    return {fmt::format("{} and {} cannot be compared: the {} of {} is undefined", pair.a, pair.b,
                        pair.score, fmt::join(pair.unscored, " and ")),
            ""};
  }
  if (pair.seeds.empty()) {
    return {fmt::format("{} and {} have no seed in common: nothing is shown", pair.a, pair.b), ""};
  }
  const Told told = tell(pair);
  const std::string by = fmt::format("{:.2f} points of {}", told.by,
                                     pair.score == "top1" ? "top-1 accuracy" : pair.score);
  const std::string higher =
      told.by > 0 ? fmt::format("{} scored {} higher than {}", told.higher, by, told.lower)
                  : fmt::format("{} and {} scored the same", told.higher, told.lower);
  if (pair.seeds.size() == 1) {
    return {higher + " with one seed: whether that is chance takes more seeds to tell", ""};
  }
  const std::string shown = "(" + evidence(told, pair, pairs) + ")";
  const std::optional<double> p = pairs > 1 ? pair.p_holm : pair.p_value;
  if (p && *p <= kLevel && told.by > 0) {
    return {fmt::format("{} is better than {} by {}", told.higher, told.lower, by), shown};
  }
  if (!told.interval || told.interval->low <= 0) {
    return {fmt::format("No difference between {} and {} is shown: {}", pair.a, pair.b, higher),
            shown};
  }
  const double smallest = pair.smallest_p * static_cast<double>(pairs);
  return {higher + (smallest > kLevel ? ", but so few seeds cannot rule out chance"
                                      : ", but the sign-flip test does not rule out chance"),
          shown};
}

void add_answer(const ReportData& data, Page& page) {
  if (!data.compares()) {
    add_single(data, page);
  } else {
    const Comparison& comparison = *data.comparison;
    const std::size_t main = main_pair(comparison);
    const std::size_t tested = comparison.pairs.size();
    const Verdict answer = verdict(comparison.pairs[main], tested);
    page.headline(answer.claim, answer.evidence);
    for (std::size_t i = 0; i < tested; ++i) {
      if (i != main) page.paragraph(verdict(comparison.pairs[i], tested).text() + ".");
    }
  }
  if (!data.comparison) return;
  for (const std::string& warning : data.comparison->warnings) page.warning(warning);
}

}  // namespace lockstep
