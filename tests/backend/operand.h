#pragma once
// Operands of the operation tests: a tensor of a backend that may be a channel range of a wider
// one, and random values for it. Works with any backend: values travel by upload and download only.
// A body of tests that takes a TypedBackend runs with activations of every type: it computes what
// it expects from values that the type can hold, and compares without the rounding of the result.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/backend/backend.h"
#include "support/backends.h"
#include "support/devices.h"
#include "support/relative_error.h"
#include "support/storage_type.h"

namespace lockstep::test {

using Values = std::vector<float>;
using Doubles = std::vector<double>;

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

/// Few distinct values, so that windows hold equal maxima.
inline Values values_with_ties(const Shape& shape, std::uint32_t seed) {
  Values values = random_values(shape, seed, 2.0F);
  for (float& value : values) value = std::round(value);
  return values;
}

/// Each value as a tensor of the type has it.
inline Values stored_values(DType dtype, Values values) {
  for (float& value : values) value = stored(dtype, value);
  return values;
}

/// Adds them at the end.
inline void append(Values& all, const Values& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// Square, and padded so that a stride of 1 keeps an image's size.
inline ConvGeometry same_padding_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                      std::int64_t stride = 1, std::int64_t dilation = 1,
                                      std::int64_t groups = 1) {
  const std::int64_t padding = dilation * (kernel / 2);
  return {in, out, kernel, kernel, stride, stride, padding, padding, dilation, dilation, groups};
}

/// A backend, and the type that activations have on it.
struct TypedBackend {
  Backend& backend;
  DType dtype;
  std::vector<DType> types;  // all that the backend has; empty unless for_each_type() made this

  TypedBackend(Backend& where, DType type = DType::kFloat32, std::vector<DType> all = {})
      : backend(where), dtype(type), types(std::move(all)) {}

  Backend* operator->() const { return &backend; }
  /// Values as a tensor holds them.
  Values stored(Values values) const { return stored_values(dtype, std::move(values)); }
  Values random(const Shape& shape, std::uint32_t seed, float scale = 1.0F) const {
    return stored(random_values(shape, seed, scale));
  }
};

/// Calls body(on) for every backend and every type of activations that it has.
template <typename Body>
void for_each_type(const Body& body) {
  for (NamedBackend& named : available_backends()) {
    for (const DType dtype : named.types) {
      CAPTURE(named.name);
      CAPTURE(std::string(to_string(dtype)));
      body(TypedBackend(*named.backend, dtype, named.types));
    }
  }
}

/// A tensor in device memory, in fp32 unless `on` says otherwise. The margins hold a marker that no
/// operation may change.
class Operand {
 public:
  Operand(const TypedBackend& on, const Shape& shape, Margins margins = {})
      : on_(on),
        shape_(shape),
        margins_(margins),
        wide_(shape.with_channels(margins.before + shape.channels() + margins.after)),
        storage_(on->allocate(static_cast<std::size_t>(wide_.elements()) * size_of(on.dtype))) {
    upload(Values(static_cast<std::size_t>(wide_.elements()), kMarker));
  }
  Operand(const TypedBackend& on, const Shape& shape, const Values& values, Margins margins = {})
      : Operand(on, shape, margins) {
    set(values);
  }

  DType dtype() const { return on_.dtype; }
  Tensor tensor() const { return whole().channel_range(margins_.before, shape_.channels()); }
  float* floats() const { return tensor().floats(); }

  /// Rounds the values to the operand's type; none: it holds the marker.
  void set(const Values& values) {
    Values wide(static_cast<std::size_t>(wide_.elements()), kMarker);
    if (values.empty()) return upload(wide);
    REQUIRE(values.size() == static_cast<std::size_t>(shape_.elements()));
    for_each_row([&](std::size_t own, std::size_t in_wide, std::size_t channels) {
      std::copy_n(&values[own], channels, &wide[in_wide]);
    });
    upload(on_.stored(std::move(wide)));
  }
  Values get() const {
    const Values wide = download();
    Values values(static_cast<std::size_t>(shape_.elements()));
    for_each_row([&](std::size_t own, std::size_t in_wide, std::size_t channels) {
      std::copy_n(&wide[in_wide], channels, &values[own]);
    });
    return values;
  }
  /// Whether everything beside the operand still holds the marker.
  bool margins_untouched() const {
    Values wide = download();
    for_each_row([&](std::size_t, std::size_t in_wide, std::size_t channels) {
      std::fill_n(&wide[in_wide], channels, kMarker);
    });
    return std::all_of(wide.begin(), wide.end(), [](float value) { return value == kMarker; });
  }

 private:
  static constexpr float kMarker = 12352.0F;  // every type can hold it

  /// body(first value of the operand, its place with the margins, how many follow).
  template <typename Body>
  void for_each_row(const Body& body) const {
    const auto channels = static_cast<std::size_t>(shape_.channels());
    const auto size = static_cast<std::size_t>(shape_.elements());
    auto in_wide = static_cast<std::size_t>(margins_.before);
    for (std::size_t own = 0; own < size; own += channels) {
      body(own, in_wide, channels);
      in_wide += static_cast<std::size_t>(wide_.channels());
    }
  }
  /// With the margins.
  Tensor whole() const { return {storage_.data(), wide_, on_.dtype}; }

  void upload(const Values& wide) const {
    std::vector<std::uint16_t> bits;
    if (dtype() == DType::kFloat32) {
      on_->upload(whole(), wide.data());
    } else {
      for (const float value : wide) bits.push_back(to_bits(dtype(), value));
      on_->upload(whole(), bits.data());
    }
    on_->synchronize();
  }
  Values download() const {
    Values wide(static_cast<std::size_t>(wide_.elements()));
    std::vector<std::uint16_t> bits(wide.size());
    if (dtype() == DType::kFloat32) {
      on_->download(wide.data(), whole());
      on_->synchronize();
      return wide;
    }
    on_->download(bits.data(), whole());
    on_->synchronize();
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = from_bits(dtype(), bits[i]);
    return wide;
  }

  TypedBackend on_;
  Shape shape_;
  Margins margins_;
  Shape wide_;
  Storage storage_;
};

/// Of what an operation left in an operand.
inline double relative_error(const Operand& result, const Doubles& reference) {
  return relative_error(result.get(), reference, result.dtype());
}

inline Doubles widen(const Values& values) { return {values.begin(), values.end()}; }

}  // namespace lockstep::test
