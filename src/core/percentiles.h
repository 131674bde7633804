#pragma once
// Percentiles of a few values.

#include <span>

namespace lockstep {

/// For times, whose spread is skewed.
struct Percentiles {
  int count = 0;
  double p10 = 0, median = 0, p90 = 0;  // linear between the two nearest values; NaN without values
};

Percentiles percentiles(std::span<const double> values);

}  // namespace lockstep
