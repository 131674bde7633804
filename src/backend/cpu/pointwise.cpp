// Operations that look at one element at a time: copy, ReLU, sum, dropout.

#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"
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

// y[i] = f(a[i]), or += with `accumulate`. y may alias a.
template <typename Function>
void map(const Tensor& a, const Tensor& y, bool accumulate, int threads, const Function& f) {
  const float* from = a.floats();
  float* to = y.floats();
  for_each_stretch<2>(a.shape, {a.row_stride, y.row_stride}, threads,
                      [&](const auto& at, std::int64_t count) {
                        const float* source = from + at[0];
                        float* target = to + at[1];
                        if (accumulate) {
#pragma omp simd
                          for (std::int64_t i = 0; i < count; ++i) target[i] += f(source[i]);
                        } else {
#pragma omp simd
                          for (std::int64_t i = 0; i < count; ++i) target[i] = f(source[i]);
                        }
                      });
}

// y[i] = f(a[i], b[i]), or += with `accumulate`. y may alias a or b.
template <typename Function>
void map(const Tensor& a, const Tensor& b, const Tensor& y, bool accumulate, int threads,
         const Function& f) {
  const float* left = a.floats();
  const float* right = b.floats();
  float* to = y.floats();
  for_each_stretch<3>(a.shape, {a.row_stride, b.row_stride, y.row_stride}, threads,
                      [&](const auto& at, std::int64_t count) {
                        const float* x0 = left + at[0];
                        const float* x1 = right + at[1];
                        float* target = to + at[2];
                        if (accumulate) {
#pragma omp simd
                          for (std::int64_t i = 0; i < count; ++i) target[i] += f(x0[i], x1[i]);
                        } else {
#pragma omp simd
                          for (std::int64_t i = 0; i < count; ++i) target[i] = f(x0[i], x1[i]);
                        }
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
  map(source, destination, true, threads_, Identity());
}

void CpuBackend::relu_forward(const Tensor& x, const Tensor& y) {
  check_same_shape("relu_forward", {&x, &y});
  check_fp32("relu_forward", {&x, &y});
  map(x, y, false, threads_, Relu());
}

void CpuBackend::relu_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                               bool accumulate) {
  check_same_shape("relu_backward", {&y, &grad_y, &grad_x});
  check_fp32("relu_backward", {&y, &grad_y, &grad_x});
  map(y, grad_y, grad_x, accumulate, threads_, ReluGradient());
}

void CpuBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  check_same_shape("add", {&a, &b, &y});
  check_fp32("add", {&a, &b, &y});
  map(a, b, y, false, threads_, Add());
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
