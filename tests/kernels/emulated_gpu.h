#pragma once
// What tests of single kernels need: a GPU in host memory, and conditions of the emulation.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/launch.h"
#include "lockstep/backend/backend.h"

namespace lockstep::test {

/// Convolutions of the CPU's backend, in fp32: operands of a narrower type are widened, and
/// weights, results and gradients of weights are rounded to that type as the GPU's plans do.
class HostConvolutions final : public ConvolutionOperations {
 public:
  /// Both outlive the object.
  HostConvolutions(Backend& host, const gpu::Context& gpu) : host_(host), gpu_(gpu) {}

  void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType, bool backward,
                      bool grad_input) override {
    host_.convolutions().prepare_conv2d(geometry, input, DType::kFloat32, backward, grad_input);
  }
  void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                      const float* bias, const Tensor& y) override;
  void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                            const Tensor& grad_x) override;
  void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                               float* grad_weight, float* grad_bias) override;
  void conv2d_inference(const ConvGeometry&, const Tensor&, const float*, const float*,
                        const BatchNormInference&) override {
    throw std::logic_error("conv2d_inference: not on a GPU");
  }

 private:
  /// A dense fp32 tensor in memory of its own.
  struct Wide {
    Storage memory;
    Tensor tensor;
  };

  /// Zeros of the shape of `like`.
  Wide zeros(const Tensor& like);
  Wide widened(const Tensor& tensor);
  /// Weights as a plan of `dtype` has them.
  Wide rounded(const ConvGeometry& geometry, const float* weight, DType dtype);

  Backend& host_;
  const gpu::Context& gpu_;
};

/// A GPU whose kernels are those of kernels/operations, run by the emulation. Its device memory is
/// the host's, so that the operands of the CPU's backend are operands of the kernels too.
class EmulatedGpu final : public gpu::GpuOperations {
 public:
  explicit EmulatedGpu(int multiprocessors = 3, bool sums_by_image = false);

  operator const gpu::Context&() const { return gpu_; }
  std::vector<unsigned>& counters() { return counters_; }
  void use_dependent_launches() { gpu_.dependent_launches = true; }
  /// What an exchange gives the stream.
  void wait_for_peers() { gpu_.behind_no_kernel = true; }

  const Device& device() const override { return host_->device(); }
  bool asynchronous() const override { return true; }  // in what is asked of it
  Storage allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  std::size_t allocated_bytes() const override { return host_->allocated_bytes(); }
  std::size_t peak_allocated_bytes() const override { return host_->peak_allocated_bytes(); }
  void upload(const Tensor& destination, const void* source) override {
    host_->upload(destination, source);
  }
  void download(void* destination, const Tensor& source) override {
    host_->download(destination, source);
  }
  void synchronize() override {}

  ConvolutionOperations& convolutions() override { return convolutions_; }
  OptimizerOperations& optimizer() override { return optimizer_; }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Release {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  using Block = std::unique_ptr<void, Release>;
  /// A new block each time, unset as on a GPU, so that reads past its end or of the last one show.
  static void* renew(Block& block, std::size_t bytes);

  std::unique_ptr<Backend> host_;
  gpu::Context& gpu_;
  std::vector<unsigned> counters_;
  Block scratch_, sums_;
  HostConvolutions convolutions_;
  gpu::GpuOptimizer optimizer_;
};

/// Options of the emulation for the life time of the object.
struct WithOptions {
  explicit WithOptions(const emulation::Options& options) { emulation::options() = options; }
  ~WithOptions() { emulation::options() = {}; }
  WithOptions(const WithOptions&) = delete;
  WithOptions& operator=(const WithOptions&) = delete;
};

/// Whether run() gives another result than `expected`, or hangs, when `fault` is planted, in some
/// of a few orders of threads.
template <typename Run, typename Result>
bool is_seen(emulation::Options fault, const Result& expected, const Run& run) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    fault.seed = seed;
    const WithOptions planted(fault);
    try {
      if (!(run() == expected)) return true;  // NaN is another result as well
    } catch (const std::logic_error&) {
      return true;
    }
  }
  return false;
}

/// CHECKs that run(gpu) gives `expected` on GPUs of several sizes in several orders of threads.
template <typename Run, typename Result>
void check_in_all_orders(const Result& expected, const Run& run) {
  for (const int multiprocessors : {1, 5}) {
    for (const std::uint64_t seed : {1, 2}) {
      CAPTURE(multiprocessors);
      CAPTURE(seed);
      const WithOptions order({.seed = seed});
      EmulatedGpu emulated(multiprocessors);
      CHECK(run(emulated) == expected);
    }
  }
}

inline std::unique_ptr<Backend> cpu_backend() { return make_backend(Device{}, 1); }

}  // namespace lockstep::test
