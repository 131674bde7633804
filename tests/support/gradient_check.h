#pragma once
// Central differences of a random projection of the outputs. Never of their plain sum: BatchNorm's
// outputs sum to a constant, so that any gradient near zero would pass, and a wrong one with it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace lockstep::test {

/// The gradient of `function` with respect to `at`, by central differences of half width `step`.
/// Leaves `at` as it was.
inline std::vector<double> numerical_gradient(std::vector<double>& at,
                                              const std::function<double()>& function,
                                              double step) {
  std::vector<double> gradient;
  for (double& value : at) {
    const double centre = value;
    value = centre + step;
    const double above = function();
    value = centre - step;
    const double below = function();
    value = centre;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

/// The gradient of sum_i projection[i] * function(x)[i].
inline std::vector<double> numerical_gradient(
    const std::function<std::vector<double>(const std::vector<double>&)>& function,
    std::vector<double> x, const std::vector<double>& projection, double step = 1e-5) {
  const auto projected = [&] {
    const std::vector<double> outputs = function(x);
    double sum = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) sum += projection[i] * outputs[i];
    return sum;
  };
  return numerical_gradient(x, projected, step);
}

/// max |a - b| / max(1, |a|, |b|), Caffe's measure; NaN when either holds NaN.
inline double gradient_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = a.size() == b.size() ? 0.0 : NAN;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double scale = std::max({1.0, std::abs(a[i]), std::abs(b[i])});
    const double difference = std::abs(a[i] - b[i]) / scale;
    if (std::isnan(difference)) return difference;
    error = std::max(error, difference);
  }
  return error;
}

}  // namespace lockstep::test
