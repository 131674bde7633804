#include <fmt/format.h>

#include <optional>

#include "report/sections/sections.h"

namespace lockstep {
namespace {

/// The best row and what it costs; then each difference in a sentence.
void add_pairs(const Comparison& comparison, Page& page) {
  const std::optional<BestRow> best = best_row(comparison);
  if (best) {
    page.headline(best->claim(comparison));
    page.paragraph(cost_of(comparison.rows[best->row]) + ".");
  }
  bool first = !best;
  for (const PairedDifference* pair : told_pairs(comparison)) {
    const Verdict answer = verdict(*pair, comparison.adjustment.together);
    first ? page.headline(answer.claim, answer.evidence) : page.paragraph(answer.text() + ".");
    first = false;
  }
}

/// What more images are worth to each mode stands below the curve.
void add_curve_answer(const Comparison& comparison, Page& page) {
  const std::vector<std::string> claims = curve_claims(comparison);
  if (claims.empty()) {
    const Verdict answer = verdict(comparison.pairs.front(), comparison.adjustment.together);
    return page.headline(answer.claim, answer.evidence);
  }
  page.headline(claims.front());
  for (std::size_t i = 1; i < claims.size(); ++i) page.paragraph(claims[i] + ".");
  for (const PairedDifference* pair : told_pairs(comparison)) {
    page.paragraph(verdict(*pair, comparison.adjustment.together).text() + ".");
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
  const MeanSpread& score = data.comparison->rows.front().score_spread;
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
