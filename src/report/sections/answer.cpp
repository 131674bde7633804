#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "report/sections/sections.h"

namespace lockstep {
namespace {

/// Each difference in a sentence. With too few seeds only where no headline says so: their figure
/// has the numbers.
std::vector<std::string> differences(const Comparison& comparison, bool headline) {
  std::vector<std::string> sentences;
  for (const PairedDifference* pair : told_pairs(comparison)) {
    const Verdict found = verdict(*pair, comparison.adjustment.together);
    if (!headline || found.kind != Verdict::Kind::kTooFewSeeds) sentences.push_back(found.text());
  }
  return sentences;
}

/// The best row and what it costs; of a curve where which norm is better; else the differences.
/// Those of a curve stand below it.
void add_comparison(const Comparison& comparison, Page& page) {
  const std::optional<BestRow> best = best_row(comparison);
  const std::vector<std::string> sentences =
      comparison.curve ? curve_claims(comparison) : differences(comparison, best.has_value());
  auto next = sentences.begin();
  if (best) {
    page.headline(best->claim(comparison));
    page.paragraph(cost_of(comparison.rows[best->row]) + ".");
  } else if (next != sentences.end()) {
    page.headline(*next++);
  }
  for (; next != sentences.end(); ++next) page.paragraph(*next + ".");
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
