// Operations that look at one element at a time: copy, activations, dropout.

#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/map.h"
#include "backend/cpu/parallel_for.h"
#include "backend/operand_checks.h"
#include "core/rng.h"

namespace lockstep {
namespace {

void copy_elements(const Tensor& source, const Tensor& destination, int threads) {
  const auto size = static_cast<std::int64_t>(size_of(source.dtype));
  const auto* from = static_cast<const std::byte*>(source.data);
  auto* to = static_cast<std::byte*>(destination.data);
  for_each_stretch<2>(source.shape, {source.row_stride, destination.row_stride}, threads,
                      [&](const auto& at, std::int64_t count) {
                        std::memcpy(to + at[1] * size, from + at[0] * size,
                                    static_cast<std::size_t>(count * size));
                      });
}

struct Dropout {
  DropoutElement element;
  std::uint64_t seed;
  bool accumulate;
};

// Element e of a sample takes the e-th number of the sample's own stream.
void drop_sample(const Tensor& x, const Tensor& y, const Dropout& dropout, std::uint64_t sample) {
  Rng rng(dropout.seed, RngPurpose::kDropout, sample);
  for (std::int64_t row = 0; row < x.shape.rows(); ++row) {
    const float* from = x.floats() + row * x.row_stride;
    float* to = y.floats() + row * y.row_stride;
    for (std::int64_t c = 0; c < x.shape.channels(); ++c) {
      const float value = dropout.element(from[c], rng.uniform());
      to[c] = dropout.accumulate ? to[c] + value : value;
    }
  }
}

}  // namespace

void CpuBackend::copy(const Tensor& source, const Tensor& destination, bool accumulate) {
  check_same_shape("copy", {&source, &destination});
  if (source.dtype == destination.dtype && !accumulate) {
    return copy_elements(source, destination, threads_);
  }
  check_fp32("copy that converts or accumulates", {&source, &destination});
  map(Identity(), destination, true, threads_, source);
}

void CpuBackend::activation_forward(const Activation& activation, const Tensor& x,
                                    const Tensor& y) {
  check_same_shape("activation_forward", {&x, &y});
  check_fp32("activation_forward", {&x, &y});
  with_activation(activation, [&](const auto& f) { map(f, y, false, threads_, x); });
}

void CpuBackend::activation_backward(const Activation& activation, const Tensor& saved,
                                     const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  check_same_shape("activation_backward", {&saved, &grad_y, &grad_x});
  check_fp32("activation_backward", {&saved, &grad_y, &grad_x});
  with_activation(activation, [&](const auto& f) {
    map(ActivationGradient{f}, grad_x, accumulate, threads_, saved, grad_y);
  });
}

void CpuBackend::dropout(const Tensor& x, const Tensor& y, float p,
                         DeviceScalar<std::uint64_t> seed, std::int64_t sample_offset,
                         bool accumulate) {
  check_same_shape("dropout", {&x, &y});
  check_fp32("dropout", {&x, &y});
  LOCKSTEP_CHECK(p >= 0.0F && p < 1.0F, "dropout: expected 0 <= p < 1, got ", p);
  const Dropout dropout{DropoutElement(p), seed.get(), accumulate};
  const std::int64_t sample_elements = x.shape.rows_per_sample() * x.shape.channels();
  parallel_for(x.shape.batch(), sample_elements, threads_,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t n = begin; n < end; ++n) {
                   drop_sample(x.sample_range(n, 1), y.sample_range(n, 1), dropout,
                               static_cast<std::uint64_t>(sample_offset + n));
                 }
               });
}

}  // namespace lockstep
