#include <fmt/format.h>

#include <optional>

#include "report/sections/sections.h"

namespace lockstep {
namespace {

// The mode that the project is about against the one that everyone has.
std::size_t main_pair(const Comparison& comparison) {
  for (std::size_t i = 0; i < comparison.pairs.size(); ++i) {
    const PairedDifference& pair = comparison.pairs[i];
    const auto is = [&](const char* a, const char* b) { return pair.a == a && pair.b == b; };
    if (is("sync", "local") || is("local", "sync")) return i;
  }
  return 0;
}

void add_pairs(const Comparison& comparison, Page& page) {
  const std::size_t main = main_pair(comparison);
  const std::size_t tested = comparison.adjustment.together;
  const Verdict answer = verdict(comparison.pairs[main], tested);
  page.headline(answer.claim, answer.evidence);
  for (std::size_t i = 0; i < comparison.pairs.size(); ++i) {
    if (i != main) page.paragraph(verdict(comparison.pairs[i], tested).text() + ".");
  }
}

/// What more images are worth to each mode stands below the curve.
void add_curve_answer(const Comparison& comparison, Page& page) {
  if (comparison.curve->synchronizing.empty()) {
    const Verdict answer = verdict(comparison.pairs.front(), comparison.adjustment.together);
    return page.headline(answer.claim, answer.evidence);
  }
  page.headline(synchronizing_claim(comparison));
  for (const std::vector<CurveStep>* steps : steps_between_modes(*comparison.curve)) {
    for (const CurveStep& step : *steps) {
      const PairedDifference& pair = comparison.pairs[step.pair];
      page.paragraph(verdict(pair, comparison.adjustment.together).text() + ".");
    }
  }
}

void add_comparison(const Comparison& comparison, Page& page) {
  comparison.curve ? add_curve_answer(comparison, page) : add_pairs(comparison, page);
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
    text += fmt::format(" ± {:.2f}, {}", *score.standard_deviation, count_of(score.count, "seed"));
  }
  page.headline(text);
}

}  // namespace

std::string describe_runs(const ReportData& data) {
  const RunRecord& run = data.runs.front();
  return data.runs.size() == 1 ? fmt::format("{}, seed {}", run.mode, run.seed) : run.mode;
}

void add_answer(const ReportData& data, Page& page) {
  if (!data.compares()) {
    add_single(data, page);
  } else {
    add_comparison(*data.comparison, page);
  }
  if (!data.comparison) return;
  for (const std::string& note : layer_notes(*data.comparison)) page.note(note);
  for (const std::string& warning : data.comparison->warnings) page.warning(warning);
}

}  // namespace lockstep
