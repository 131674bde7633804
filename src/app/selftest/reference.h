#pragma once
// BatchNorm in double by plain loops, from the formulas of Ioffe and Szegedy (2015), in as many
// steps as they have.

#include <cstdint>
#include <span>
#include <vector>

#include "app/selftest/measure.h"

namespace lockstep {

/// Samples that are normalised together.
using SampleGroup = std::vector<std::int64_t>;

/// All samples from `begin` up to `end`.
SampleGroup sample_range(std::int64_t begin, std::int64_t end);

struct PlainMoments {
  double count = 0;
  Doubles mean, var;  // [C], biased

  /// What running_var takes.
  Doubles unbiased_var() const;
};

/// A call of the layer. Values are [samples, rows of a sample, C].
struct PlainBatchNorm {
  std::size_t rows_per_sample = 1, channels = 1;
  Doubles x;
  Doubles gamma, beta;  // [C]
  double eps = 1e-5;
  bool clamp = false;  // the standard deviation is sqrt(max(var, eps))

  struct Result {
    Doubles y, grad_x, grad_gamma, grad_beta;
  };
  /// Of the training's forward and backward pass, each group by its own moments.
  Result train(std::span<const SampleGroup> groups, const Doubles& grad_y) const;
  PlainMoments moments(const SampleGroup& group) const;
  /// By given moments.
  Doubles normalize(const PlainMoments& moments) const;

 private:
  template <typename Body>
  void for_each_row(const SampleGroup& group, std::size_t channel, const Body& body) const;
  double deviation(double var) const;
  void normalize_group(const SampleGroup& group, const PlainMoments& moments, Doubles& y) const;
  void backward_channel(const SampleGroup& group, const PlainMoments& moments, std::size_t channel,
                        const Doubles& grad_y, Result& result) const;
};

}  // namespace lockstep
