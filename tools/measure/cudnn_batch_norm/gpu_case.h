#pragma once
// A GPU with cuDNN, and the memory and the expected result of one case of `lockstep bench
// batch_norm` on it.

#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "app/bench/batch_norm_work.h"
#include "kernels/cudnn/check_cudnn.h"
#include "kernels/cudnn/cudnn_graph.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"

namespace lockstep::gpu {

inline constexpr double kEps = 1e-5;

/// What cuDNN does not take; the text is its own.
struct NotSupported : Error {
  using Error::Error;
};

/// The functions say BAD_PARAM for a type that they do not take.
inline void check_supported(cudnnStatus_t status, const char* what) {
  const auto category = CUDNN_STATUS_CATEGORY(status);
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM) {
    throw NotSupported(concat(what, ": ", describe_cudnn(status)));
  }
  check_cudnn(status, what);
}

struct DestroyHandle {
  void operator()(cudnnContext* handle) const { cudnnDestroy(handle); }
};

/// A GPU with cuDNN.
struct Gpu {
  explicit Gpu(int number) : ordinal(number), stream(number), memory(number, waits, stream.get()) {
    make_current(number);
    cudnnHandle_t made = nullptr;
    check_cudnn(cudnnCreate(&made), "cudnnCreate");
    handle.reset(made);
    check_cudnn(cudnnSetStream(made, stream.get()), "cudnnSetStream");
  }

  ~Gpu() {
    make_current(ordinal);
    handle.reset();
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void synchronize() const { check_cuda(cudaStreamSynchronize(stream.get()), "waiting"); }

  int ordinal;
  StreamOwner stream;
  HostWaits waits;
  DeviceMemory memory;
  std::unique_ptr<cudnnContext, DestroyHandle> handle;
};

/// Images of such a number of rows, as square as it allows.
inline CudnnExtents extents_of(const BatchNormWork& work) {
  auto height = static_cast<std::int64_t>(std::sqrt(static_cast<double>(work.rows())));
  while (work.rows() % height != 0) --height;
  return {1, work.channels, height, work.rows() / height};
}

/// Mean and 1 / deviation of the first channel.
struct Moments {
  double mean = 0, invstd = 0;
};

/// What is added to the values of each GPU of a group, so that the batches differ.
inline float shift_of(int gpu) { return 0.25F * static_cast<float>(gpu % 4); }

/// Of the batches of `gpus`.
inline Moments expected_moments(const BatchNormWork& work, int gpus) {
  const std::int64_t count = work.rows() * work.channels;
  const std::vector<float> values =
      batch_norm_values(std::min(count, kValuesPeriod), work.channels);
  double sum = 0, squares = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    for (std::int64_t i = 0; i < count; i += work.channels) {
      const double value = values[static_cast<std::size_t>(i % kValuesPeriod)] + shift_of(gpu);
      sum += value;
      squares += value * value;
    }
  }
  const double rows = static_cast<double>(work.rows()) * gpus;
  const double mean = sum / rows;
  return {mean, 1 / std::sqrt(squares / rows - mean * mean + kEps)};
}

inline bool is_close(const Moments& a, const Moments& b) {
  return std::abs(a.mean - b.mean) < 1e-3 && std::abs(a.invstd / b.invstd - 1) < 1e-3;
}

/// Memory of one case on one GPU.
struct Memory {
  Memory(Gpu& gpu, const BatchNormWork& work, float shift, bool with_residual)
      : bytes(static_cast<std::size_t>(work.tensor_bytes())),
        channels(static_cast<std::size_t>(work.channels)),
        x(gpu.memory.allocate(bytes)),
        y(gpu.memory.allocate(bytes)),
        grad_y(gpu.memory.allocate(bytes)),
        grad_x(gpu.memory.allocate(bytes)),
        small(gpu.memory.allocate(kRows * channels * sizeof(float))) {
    if (with_residual) {
      residual = gpu.memory.allocate(bytes);
      grad_residual = gpu.memory.allocate(bytes);
    }
    const std::int64_t count = work.rows() * work.channels;
    std::vector<float> values = batch_norm_values(std::min(count, kValuesPeriod), work.channels);
    for (float& value : values) value += shift;
    fill(x, values, work.dtype);
    fill(grad_y, values, work.dtype);
    if (with_residual) fill(residual, values, work.dtype);
    const std::vector<float> scale(channels, kBatchNormDeviation);
    check_cuda(cudaMemcpy(row(kScale), scale.data(), channels * sizeof(float), cudaMemcpyDefault),
               "filling the scale");
    // The stream would not wait for these copies.
    check_cuda(cudaDeviceSynchronize(), "filling memory");
  }

  enum Row { kScale, kBias, kMean, kInvStd, kGradScale, kGradBias, kRows };
  float* row(Row index) const { return static_cast<float*>(small.data()) + index * channels; }

  void fill(const Storage& to, const std::vector<float>& values, DType dtype) const {
    std::vector<std::uint16_t> narrow;
    if (dtype != DType::kFloat32) narrow = narrow_values(values, dtype);
    const void* from = narrow.empty() ? static_cast<const void*>(values.data()) : narrow.data();
    const std::size_t period = values.size() * size_of(dtype);
    for (std::size_t begin = 0; begin < bytes; begin += period) {
      check_cuda(cudaMemcpy(static_cast<std::byte*>(to.data()) + begin, from,
                            std::min(period, bytes - begin), cudaMemcpyDefault),
                 "filling a tensor");
    }
  }

  /// What the forward pass has found.
  Moments moments() const {
    float mean = 0, invstd = 0;
    check_cuda(cudaMemcpy(&mean, row(kMean), sizeof mean, cudaMemcpyDefault), "reading the mean");
    check_cuda(cudaMemcpy(&invstd, row(kInvStd), sizeof invstd, cudaMemcpyDefault),
               "reading the deviation");
    return {mean, invstd};
  }

  std::size_t bytes, channels;
  Storage x, y, grad_y, grad_x, small;
  Storage residual, grad_residual;  // where there is one
};

}  // namespace lockstep::gpu
