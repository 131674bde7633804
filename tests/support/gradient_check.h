#pragma once
// Central differences of a random projection of the outputs. Never of their plain sum: BatchNorm's
// outputs sum to a constant, so that any gradient near zero would pass, and a wrong one with it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace lockstep::test {

/// The gradient of sum_i projection[i] * function(x)[i] by central differences of half width
/// `step`.
inline std::vector<double> numerical_gradient(
    const std::function<std::vector<double>(const std::vector<double>&)>& function,
    std::vector<double> x, const std::vector<double>& projection, double step = 1e-5) {
  const auto projected = [&] {
    const std::vector<double> outputs = function(x);
    double sum = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) sum += projection[i] * outputs[i];
    return sum;
  };
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double centre = x[i];
    x[i] = centre + step;
    const double above = projected();
    x[i] = centre - step;
    const double below = projected();
    x[i] = centre;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
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
