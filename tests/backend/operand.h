#pragma once
// Operands of the operation tests: a tensor of a backend that may be a channel range of a wider
// one, and random values for it. Works with any backend: values travel by upload and download only.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep::test {

using Values = std::vector<float>;

/// How many channels of a wider tensor lie before and after the operand.
struct Margins {
  std::int64_t before = 0, after = 0;
};

inline Values random_values(const Shape& shape, std::uint32_t seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  Values values(static_cast<std::size_t>(shape.elements()));
  for (float& value : values) value = normal(generator);
  return values;
}

/// A tensor in device memory. The margins hold a marker that no operation may change.
class Operand {
 public:
  Operand(Backend& backend, const Shape& shape, Margins margins = {})
      : backend_(backend),
        shape_(shape),
        margins_(margins),
        wide_(shape.with_channels(margins.before + shape.channels() + margins.after)),
        storage_(backend.allocate(static_cast<std::size_t>(wide_.elements()) * sizeof(float))) {
    set(Values(static_cast<std::size_t>(shape.elements()), kMarker));
  }
  Operand(Backend& backend, const Shape& shape, const Values& values, Margins margins = {})
      : Operand(backend, shape, margins) {
    set(values);
  }

  Tensor tensor() const {
    return Tensor(storage_.data(), wide_).channel_range(margins_.before, shape_.channels());
  }
  float* floats() const { return tensor().floats(); }

  void set(const Values& values) {
    Values wide(static_cast<std::size_t>(wide_.elements()), kMarker);
    for (std::size_t i = 0; i < values.size(); ++i) wide[wide_index(i)] = values[i];
    backend_.upload(Tensor(storage_.data(), wide_), wide.data());
    backend_.synchronize();
  }
  Values get() const {
    const Values wide = download();
    Values values(static_cast<std::size_t>(shape_.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = wide[wide_index(i)];
    return values;
  }
  /// Whether everything beside the operand still holds the marker.
  bool margins_untouched() const {
    Values wide = download();
    for (std::int64_t i = 0; i < shape_.elements(); ++i) wide[wide_index(i)] = kMarker;
    return std::all_of(wide.begin(), wide.end(), [](float value) { return value == kMarker; });
  }

 private:
  static constexpr float kMarker = 12345.0F;

  std::size_t wide_index(std::size_t i) const {
    const auto channels = static_cast<std::size_t>(shape_.channels());
    return i / channels * static_cast<std::size_t>(wide_.channels()) +
           static_cast<std::size_t>(margins_.before) + i % channels;
  }
  Values download() const {
    Values wide(static_cast<std::size_t>(wide_.elements()));
    backend_.download(wide.data(), Tensor(storage_.data(), wide_));
    backend_.synchronize();
    return wide;
  }

  Backend& backend_;
  Shape shape_;
  Margins margins_;
  Shape wide_;
  Storage storage_;
};

/// The largest difference from a reference in double, relative to the reference's largest value;
/// NaN when any difference is.
inline double relative_error(const Values& values, const std::vector<double>& reference) {
  double error = 0, largest = 1e-30;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - reference[i]);
    if (std::isnan(difference)) return difference;
    error = std::max(error, difference);
    largest = std::max(largest, std::abs(reference[i]));
  }
  return error / largest;
}

inline std::vector<double> widen(const Values& values) { return {values.begin(), values.end()}; }

}  // namespace lockstep::test
