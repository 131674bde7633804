#pragma once
// What `bench batch_norm` computes with, for programs that time somebody else's BatchNorm on the
// same work: shapes, types, values, tensor sizes that count, and passes between synchronizations.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Tensor sizes that a pass forward and backward reads and writes. BatchNorm + ReLU: x for the
/// moments; x, y; x, dy for the sums; x, dy, dx.
inline constexpr int kBatchNormPasses = 8;
/// With a residual: x; x, residual, y; x, dy, y for the sums; x, dy, y, dx, and its gradient.
inline constexpr int kResidualPasses = 12;

inline constexpr int kBatchNormIters = 15;
inline constexpr std::int64_t kBatchNormChannels[] = {16, 64, 256};
/// The only ones that fp16, a residual and several GPUs are measured with: time is short on a
/// machine that is lent.
inline constexpr std::int64_t kSomeChannels = 64;
/// Below, about and beyond the L2 cache of a large GPU.
inline constexpr std::int64_t kBatchNormGpuBytes[] = {4'000'000, 32'000'000, 64'000'000,
                                                      256'000'000};

struct BatchNormWork {
  DType dtype = DType::kFloat32;
  std::int64_t bytes = 0;  // of a tensor, at most
  std::int64_t channels = 0;

  std::int64_t rows() const { return bytes / static_cast<std::int64_t>(size_of(dtype)) / channels; }
  double tensor_bytes() const {
    return static_cast<double>(rows() * channels) * static_cast<double>(size_of(dtype));
  }
};

inline bool has_residual(const BatchNormWork& work) { return work.channels == kSomeChannels; }

/// Of one GPU.
inline std::vector<BatchNormWork> gpu_batch_norm_work() {
  std::vector<BatchNormWork> all;
  for (const std::int64_t channels : kBatchNormChannels) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      if (dtype == DType::kFloat16 && channels != kSomeChannels) continue;
      for (const std::int64_t bytes : kBatchNormGpuBytes) all.push_back({dtype, bytes, channels});
    }
  }
  return all;
}

/// Of each of several GPUs that normalise by the statistics of all.
inline std::vector<BatchNormWork> group_batch_norm_work() {
  std::vector<BatchNormWork> all;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t bytes : {4'000'000, 64'000'000}) {
      all.push_back({dtype, bytes, kSomeChannels});
    }
  }
  return all;
}

/// On a GPU: so many that the time of one is the device's, or that of its launches where it is
/// small.
inline int passes_between_synchronizations(std::int64_t bytes) {
  constexpr std::int64_t kBytesOfAll = std::int64_t{16} << 30;
  return static_cast<int>(std::clamp<std::int64_t>(kBytesOfAll / bytes, 16, 1024));
}

/// The standard deviation of the values. As gamma it keeps the gradient's size from pass to pass,
/// where it is replaced in place.
inline constexpr float kBatchNormDeviation = 0.57735F;

/// After how many the values repeat, so that large tensors are filled in no time: a multiple of
/// every number of channels.
inline constexpr std::int64_t kValuesPeriod = std::int64_t{1} << 20;

/// `count` values of -1 to 1, all multiples of 1/128: the same in every type.
inline std::vector<float> batch_norm_values(std::int64_t count, std::int64_t channels) {
  std::vector<float> values(static_cast<std::size_t>(count));
  Rng rng(0, RngPurpose::kTest, static_cast<std::uint64_t>(channels));
  const auto drawn = static_cast<std::size_t>(std::min(count, kValuesPeriod));
  for (std::size_t i = 0; i < drawn; ++i) {
    values[i] = static_cast<float>(static_cast<int>(rng.uniform(-128, 128))) / 128;
  }
  for (std::size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
  return values;
}

/// Such values, and multiples of 1/128 below 2, as bits of bf16 or fp16: exact.
inline std::vector<std::uint16_t> narrow_values(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> narrow;
  narrow.reserve(values.size());
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (dtype == DType::kBFloat16 || rest == 0) {
      narrow.push_back(static_cast<std::uint16_t>(bits >> 16));
    } else {  // the exponent's bias is 127, and 15 in fp16
      narrow.push_back(static_cast<std::uint16_t>(sign | (rest - (112U << 23)) >> 13));
    }
  }
  return narrow;
}

}  // namespace lockstep
