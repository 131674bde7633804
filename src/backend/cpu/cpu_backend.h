#pragma once
// The CPU backend: one virtual device of the host.

#include "backend/cpu/operations.h"
#include "lockstep/backend/backend.h"

namespace lockstep {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Device& device, int threads, const BackendOptions& options)
      : cpu_(device, threads), convolutions_(cpu_, !options.tf32) {}

  const Device& device() const override { return cpu_.device(); }
  bool sums_by_image() const override { return true; }

  Storage allocate(std::size_t bytes) override { return cpu_.allocate(bytes); }
  std::size_t allocated_bytes() const override { return cpu_.allocated().now(); }
  std::size_t peak_allocated_bytes() const override { return cpu_.allocated().peak(); }
  void upload(const Tensor& destination, const void* source) override;
  void download(void* destination, const Tensor& source) override;
  void synchronize() override {}
  void fill(const Tensor& tensor, float value) override;
  void copy(const Tensor& source, const Tensor& destination, bool accumulate) override;

  ConvolutionOperations& convolutions() override { return convolutions_; }
  NormOperations& norms() override { return norms_; }
  ActivationOperations& activations() override { return activations_; }
  PoolingOperations& pooling() override { return pooling_; }
  SumOperations& sums() override { return sums_; }
  LossOperations& losses() override { return losses_; }
  OptimizerOperations& optimizer() override { return optimizer_; }

 private:
  CpuContext cpu_;
  CpuConvolutions convolutions_;
  CpuNorms norms_{cpu_};
  CpuActivations activations_{cpu_};
  CpuPooling pooling_{cpu_};
  CpuSums sums_{cpu_};
  CpuLosses losses_{cpu_};
  CpuOptimizer optimizer_{cpu_};
};

}  // namespace lockstep
