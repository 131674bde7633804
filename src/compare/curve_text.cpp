#include <fmt/format.h>

#include <algorithm>

#include "compare/comparison.h"
#include "compare/table.h"

namespace lockstep {
namespace {

std::string cell_text(const Comparison& comparison, std::optional<std::size_t> cell) {
  return cell ? plus_minus(comparison.rows[*cell].score_spread, 2) : "-";
}

std::string images_per_device(const std::vector<std::int64_t>& images) {
  const bool one = images.size() == 1 && images.front() == 1;
  return fmt::format("{} {} per device", enumerated(images), one ? "image" : "images");
}

/// For how many images which of two is better; neither: it is not shown; open: there are too few
/// seeds to show it.
struct Found {
  std::vector<std::int64_t> first, second, neither, open;

  void add(const CurveStep& step, const Comparison& comparison) {
    const PairedDifference& pair = comparison.pairs[step.pair];
    const Verdict found = verdict(pair, comparison.adjustment.together);
    list_for(found.kind, pair.spread.mean > 0).push_back(step.images);
  }

 private:
  std::vector<std::int64_t>& list_for(Verdict::Kind kind, bool positive) {
    if (kind == Verdict::Kind::kBetter) return positive ? first : second;
    const bool few = kind == Verdict::Kind::kTooFewSeeds;
    return few || kind == Verdict::Kind::kNotComparable ? open : neither;
  }
};

/// What was found of two lines, `a` and `b`.
std::string claim_of(const Found& found, const std::string& a, const std::string& b) {
  std::vector<std::string> clauses;
  const auto add = [&](std::string claim, const std::vector<std::int64_t>& images) {
    if (images.empty()) return;
    if (images.front() > 0) {
      claim = fmt::format("With {} {}", images_per_device(images), claim);
    } else if (claim.starts_with("no ") || claim.starts_with("more ")) {
      claim.front() = static_cast<char>(claim.front() - 'a' + 'A');  // it stands alone
    }
    clauses.push_back(std::move(claim));
  };
  add(fmt::format("{} is better than {}", a, b), found.first);
  add(fmt::format("{} is better than {}", b, a), found.second);
  add(fmt::format("no difference between {} and {} is shown", a, b), found.neither);
  add(fmt::format("more seeds could settle whether {} or {} is better", a, b), found.open);
  std::string text;
  for (std::string& clause : clauses) {
    if (!text.empty()) clause.front() = 'w';
    text += (text.empty() ? "" : "; ") + clause;
  }
  return text;
}

}  // namespace

std::vector<std::string> curve_claims(const Comparison& comparison) {
  std::vector<std::string> claims;
  // Steps of one list and mode follow each other.
  const auto add = [&](const std::vector<CurveStep>& steps, const auto& names) {
    for (std::size_t i = 0; i < steps.size();) {
      const std::string& mode = steps[i].mode;
      Found found;
      for (; i < steps.size() && steps[i].mode == mode; ++i) found.add(steps[i], comparison);
      const auto [a, b] = names(mode);
      claims.push_back(claim_of(found, a, b));
    }
  };
  using Names = std::pair<std::string, std::string>;
  const Curve& curve = *comparison.curve;
  add(curve.synchronizing, [](const std::string& mode) { return Names("sync", mode); });
  add(curve.evaluating, [](const std::string& mode) {
    return Names(mode + " by own statistics", mode + " by running statistics");
  });
  add(curve.beyond_own, [](const std::string& mode) { return Names("sync", mode); });
  add(curve.rivals, [](const std::string& mode) { return Names(mode, "sync"); });
  return claims;
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
