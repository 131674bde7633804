#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "compare/comparison.h"

namespace lockstep {
namespace {

/// A difference, told from the higher mode's side.
struct Told {
  std::string higher, lower;
  double by = 0;
  std::optional<Interval> interval;

  /// The largest difference, either way, that the interval leaves.
  double plausible() const { return std::max(std::abs(interval->low), std::abs(interval->high)); }
};

Told tell(const PairedDifference& pair) {
  const double mean = pair.spread.mean;
  if (mean >= 0) return {pair.a, pair.b, mean, pair.interval};
  Told told{pair.b, pair.a, -mean, pair.interval};
  if (told.interval) told.interval = Interval{-pair.interval->high, -pair.interval->low};
  return told;
}

std::string evidence(const Told& told, const PairedDifference& pair, std::size_t pairs) {
  if (!pair.can_settle()) return few_seeds(pair, told.higher == pair.a ? 1 : -1);
  std::string text;
  if (told.interval) {
    text =
        fmt::format("95 % interval {:+.2f} to {:+.2f}, ", told.interval->low, told.interval->high);
  }
  text += count_of(pair.seeds.size(), "seed");
  if (pair.p_value) text += fmt::format(", p = {:.3g}", *pair.p_value);
  if (pair.p_adjusted > pair.p_value && pairs > 1) {
    text += fmt::format(", with {} differences tested {:.3g}", pairs, *pair.p_adjusted);
  } else if (pair.p_adjusted > pair.p_value) {
    text += fmt::format(", after those tested before {:.3g}", *pair.p_adjusted);
  }
  return "(" + text + ")";
}

std::string points(double value, const PairedDifference& pair) {
  return fmt::format("{:.2f} points of {}", value,
                     pair.score == "top1" ? "top-1 accuracy" : pair.score);
}

std::string seen(const Told& told, const PairedDifference& pair) {
  if (!(told.by > 0)) return fmt::format("{} and {} scored the same", told.higher, told.lower);
  return fmt::format("{} scored {} higher than {}", told.higher, points(told.by, pair), told.lower);
}

Verdict not_comparable(const PairedDifference& pair) {
  if (pair.unscored.empty()) {
    return {Verdict::Kind::kNotComparable,
            fmt::format("{} and {} have no seed in common: nothing is shown", pair.a, pair.b)};
  }
  return {Verdict::Kind::kNotComparable,
          fmt::format("{} and {} cannot be compared: the {} of {} is undefined", pair.a, pair.b,
                      pair.score, fmt::join(pair.unscored, " and "))};
}

/// What is to be said of a difference that the test does not show.
Verdict not_shown(const Told& told, const PairedDifference& pair, int more) {
  const std::string modes = fmt::format("{} and {}", pair.a, pair.b), scores = seen(told, pair);
  const std::string seeds = count_of(pair.seeds.size(), "seed");
  if (pair.can_settle() && told.interval && told.plausible() <= kNegligible) {
    return {Verdict::Kind::kAlike,
            fmt::format("No difference between {} of more than {} is plausible: {}", modes,
                        points(told.plausible(), pair), scores)};
  }
  if (more > 0) {
    return {Verdict::Kind::kTooFewSeeds,
            fmt::format("{} are too few to settle which of {} is better, {} more could: {}", seeds,
                        modes, more, scores)};
  }
  if (told.interval && told.interval->low > 0) {
    return {Verdict::Kind::kUndecided,
            scores + ", but the sign-flip test does not rule out chance"};
  }
  return {Verdict::Kind::kUndecided,
          fmt::format("{} do not settle which of {} is better: {}{}", seeds, modes, scores,
                      told.interval
                          ? fmt::format("; {} may be better by up to {:.2f} points, or worse by up "
                                        "to {:.2f}",
                                        told.higher, told.interval->high, -told.interval->low)
                          : "")};
}

}  // namespace

const char* to_string(Verdict::Kind kind) {
  switch (kind) {
    case Verdict::Kind::kBetter:
      return "better";
    case Verdict::Kind::kAlike:
      return "alike";
    case Verdict::Kind::kTooFewSeeds:
      return "too few seeds";
    case Verdict::Kind::kUndecided:
      return "undecided";
    case Verdict::Kind::kNotComparable:
      break;
  }
  return "not comparable";
}

Verdict verdict(const PairedDifference& pair, std::size_t pairs) {
  if (pair.seeds.empty() || !pair.unscored.empty()) return not_comparable(pair);
  const Told told = tell(pair);
  const auto seeds = static_cast<int>(pair.seeds.size());
  const int more = std::max(0, pairs_needed(kLevel) - seeds);
  if (seeds == 1) {
    return {Verdict::Kind::kTooFewSeeds,
            seen(told, pair) + " with one seed: whether that is chance takes more seeds to tell",
            "", more};
  }
  const std::optional<double> p = pair.p_adjusted;
  const bool better = p && *p <= kLevel && told.by > 0;
  Verdict result = better ? Verdict{Verdict::Kind::kBetter,
                                    fmt::format("{} is better than {} by {}", told.higher,
                                                told.lower, points(told.by, pair))}
                          : not_shown(told, pair, more);
  result.evidence = evidence(told, pair, pairs);
  if (result.kind == Verdict::Kind::kTooFewSeeds) result.more_seeds = more;
  return result;
}

}  // namespace lockstep
