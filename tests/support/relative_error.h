#pragma once
// How far a result in fp32 or less is from a reference in double.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "support/storage_type.h"

namespace lockstep::test {

/// The largest difference from the reference, relative to the reference's largest value, beyond
/// what rounding the values to `dtype` explains (half the distance of its numbers); NaN when any
/// difference is, and where there are not as many values as in the reference.
inline double relative_error(const std::vector<float>& values, const std::vector<double>& reference,
                             DType dtype = DType::kFloat32) {
  if (values.size() != reference.size()) return NAN;
  double error = 0, largest = 1e-30;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - reference[i]);
    if (std::isnan(difference)) return difference;
    const double rounding = dtype == DType::kFloat32 ? 0 : spacing(dtype, reference[i]) / 2;
    error = std::max(error, difference - rounding);
    largest = std::max(largest, std::abs(reference[i]));
  }
  return error / largest;
}

}  // namespace lockstep::test
