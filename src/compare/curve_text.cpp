#include <fmt/format.h>

#include <algorithm>

#include "compare/comparison.h"
#include "compare/table.h"

namespace lockstep {
namespace {

std::string cell_text(const Comparison& comparison, std::optional<std::size_t> cell) {
  if (!cell) return "-";
  const MeanSpread& spread = comparison.modes[*cell].score_spread;
  if (spread.count == 0) return "-";
  const std::string mean = format_number(spread.mean, 2);
  if (!spread.standard_deviation) return mean;
  return mean + " ± " + format_number(*spread.standard_deviation, 2);
}

/// "1, 2 and 4".
std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += i + 1 == numbers.size() ? " and " : ", ";
    text += std::to_string(numbers[i]);
  }
  return text;
}

std::string images_per_device(const std::vector<std::int64_t>& images) {
  const bool one = images.size() == 1 && images.front() == 1;
  return fmt::format("{} {} per device", listed(images), one ? "image" : "images");
}

/// For how many images which of the modes is better; neither: it is not shown; open: there are too
/// few seeds to show it.
struct Found {
  std::vector<std::int64_t> sync, local, neither, open;

  explicit Found(const Comparison& comparison) {
    for (const CurveStep& step : comparison.curve->synchronizing) {
      const PairedDifference& pair = comparison.pairs[step.pair];
      const Verdict found = verdict(pair, comparison.adjustment.together);
      list_for(found.kind, pair.spread.mean > 0).push_back(step.images);
    }
  }

 private:
  std::vector<std::int64_t>& list_for(Verdict::Kind kind, bool positive) {
    if (kind == Verdict::Kind::kBetter) return positive ? sync : local;
    const bool few = kind == Verdict::Kind::kTooFewSeeds;
    return few || kind == Verdict::Kind::kNotComparable ? open : neither;
  }
};

}  // namespace

std::string synchronizing_claim(const Comparison& comparison) {
  const Found found(comparison);
  std::vector<std::string> clauses;
  const auto add = [&](const char* claim, const std::vector<std::int64_t>& images) {
    if (!images.empty())
      clauses.push_back(fmt::format("With {} {}", images_per_device(images), claim));
  };
  add("sync is better than local", found.sync);
  add("local is better than sync", found.local);
  add("no difference between sync and local is shown", found.neither);
  add("more seeds could settle whether sync or local is better", found.open);
  std::string text;
  for (std::string& clause : clauses) {
    if (!text.empty()) clause.front() = 'w';
    text += (text.empty() ? "" : "; ") + clause;
  }
  return text;
}

std::string curve_table(const Comparison& comparison) {
  const Curve& curve = *comparison.curve;
  Table table{{"images per device"}, {}};
  for (const CurveLine& line : curve.lines) table.header.push_back(line.mode);
  for (const std::int64_t images : curve.images) {
    std::vector<std::string> row{std::to_string(images)};
    for (const CurveLine& line : curve.lines) {
      row.push_back(cell_text(comparison, line.at(images)));
    }
    table.rows.push_back(std::move(row));
  }
  return fmt::format(
             "{} over the images that share statistics, of {} per step; local(2) is local with two "
             "images per device:\n\n",
             comparison.score, curve.batch) +
         to_markdown(table);
}

}  // namespace lockstep
