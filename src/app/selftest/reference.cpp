#include "app/selftest/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep {

SampleGroup sample_range(std::int64_t begin, std::int64_t end) {
  SampleGroup group(static_cast<std::size_t>(end - begin));
  std::iota(group.begin(), group.end(), begin);
  return group;
}

Doubles PlainMoments::unbiased_var() const {
  Doubles all = var;
  for (double& value : all) value *= count / (count - 1);
  return all;
}

template <typename Body>
void PlainBatchNorm::for_each_row(const SampleGroup& group, std::size_t channel,
                                  const Body& body) const {
  for (const std::int64_t sample : group) {
    for (std::size_t row = 0; row < rows_per_sample; ++row) {
      body((static_cast<std::size_t>(sample) * rows_per_sample + row) * channels + channel);
    }
  }
}

double PlainBatchNorm::deviation(double var) const {
  return std::sqrt(clamp ? std::max(var, eps) : var + eps);
}

PlainMoments PlainBatchNorm::moments(const SampleGroup& group) const {
  PlainMoments all{static_cast<double>(group.size() * rows_per_sample), Doubles(channels),
                   Doubles(channels)};
  for (std::size_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for_each_row(group, c, [&](std::size_t i) { sum += x[i]; });
    all.mean[c] = sum / all.count;
    for_each_row(group, c, [&](std::size_t i) { squares += std::pow(x[i] - all.mean[c], 2); });
    all.var[c] = squares / all.count;
  }
  return all;
}

void PlainBatchNorm::normalize_group(const SampleGroup& group, const PlainMoments& by,
                                     Doubles& y) const {
  for (std::size_t c = 0; c < channels; ++c) {
    for_each_row(group, c, [&](std::size_t i) {
      y[i] = gamma[c] * (x[i] - by.mean[c]) / deviation(by.var[c]) + beta[c];
    });
  }
}

Doubles PlainBatchNorm::normalize(const PlainMoments& by) const {
  Doubles y(x.size());
  const auto samples = x.size() / rows_per_sample / channels;
  normalize_group(sample_range(0, static_cast<std::int64_t>(samples)), by, y);
  return y;
}

// The chain rule: from y to the normalised value, the variance, the mean, and x.
void PlainBatchNorm::backward_channel(const SampleGroup& group, const PlainMoments& by,
                                      std::size_t c, const Doubles& grad_y, Result& result) const {
  const double mean = by.mean[c], sigma = deviation(by.var[c]);
  double grad_var = 0, grad_mean = 0;
  for_each_row(group, c, [&](std::size_t i) {
    result.grad_beta[c] += grad_y[i];
    result.grad_gamma[c] += grad_y[i] * (x[i] - mean) / sigma;
    const double grad_normalized = grad_y[i] * gamma[c];
    grad_var += grad_normalized * (x[i] - mean) * -0.5 / std::pow(sigma, 3);
    grad_mean -= grad_normalized / sigma;
  });
  if (clamp && by.var[c] <= eps) grad_var = 0;
  for_each_row(group, c, [&](std::size_t i) {
    result.grad_x[i] = grad_y[i] * gamma[c] / sigma + grad_var * 2 * (x[i] - mean) / by.count +
                       grad_mean / by.count;
  });
}

PlainBatchNorm::Result PlainBatchNorm::train(std::span<const SampleGroup> groups,
                                             const Doubles& grad_y) const {
  Result result{Doubles(x.size()), Doubles(x.size()), Doubles(channels), Doubles(channels)};
  for (const SampleGroup& group : groups) {
    if (group.empty()) continue;
    const PlainMoments by = moments(group);
    normalize_group(group, by, result.y);
    for (std::size_t c = 0; c < channels; ++c) backward_channel(group, by, c, grad_y, result);
  }
  return result;
}

}  // namespace lockstep
