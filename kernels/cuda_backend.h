#pragma once
// The backend of one replica on a GPU: its stream, its memory and its convolutions. The other
// operations are the kernels of GpuOperations. Several replicas may share a GPU; each has a backend
// of its own.

#include "backend/probe.h"
#include "kernels/cudnn/cudnn_convolution.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/host_copies.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/transport/peer_staging.h"

namespace lockstep::gpu {

class CudaBackend final : public GpuOperations {
 public:
  /// Throws Error when the GPU does not answer.
  explicit CudaBackend(const Device& device, const BackendOptions& options = {});
  /// Waits for the streams.
  ~CudaBackend() override;

  const Device& device() const override { return device_; }
  bool asynchronous() const override { return true; }

  Storage allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  std::size_t allocated_bytes() const override { return memory_.allocated_bytes(); }
  std::size_t peak_allocated_bytes() const override { return memory_.peak_allocated_bytes(); }
  void upload(const Tensor& destination, const void* source) override;
  void download(void* destination, const Tensor& source) override;
  void stage(const Tensor& staged, const void* source) override;
  void take_staged(const Tensor& staged, const Tensor& destination) override;
  std::unique_ptr<Readback> make_readback(const Tensor& source, int slots) override;
  void synchronize() override;

  void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype, bool backward,
                      bool grad_input) override;
  void prepack_conv2d_weights(std::span<const ConvWeights> weights) override;
  void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                      const float* bias, const Tensor& y) override;
  void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                            const Tensor& grad_x) override;
  void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                               float* grad_weight, float* grad_bias) override;
  std::vector<std::string> conv2d_algorithms() const override {
    return convolutions_.describe_plans();
  }

  /// Also where a peer's memory cannot be reached from this GPU.
  void optimizer_update(const OptimizerShard& shard) override;
  void gradient_squares(const OptimizerShard& shard, double* squares) override;
  void average_weights(const WeightAverage& average) override;
  void update_loss_scale(const LossScaleUpdate& update) override;

 private:
  void enter() override;
  const Context& prepared_context();

  const Device device_;
  StreamOwner stream_;
  StreamOwner staging_stream_;
  Event staged_;                // in the staging stream
  Event taken_;                 // in the replica's
  int compute_capability_ = 0;  // its major number
  DeviceMemory memory_;
  Storage counters_;
  DeviceScratch kernel_scratch_;
  DeviceScratch sums_;  // Context::sums
  DeviceScratch convolution_scratch_;
  UploadRing uploads_;
  PeerStaging peers_;
  CudnnConvolutions convolutions_;
};

/// Driver, libraries, devices with their memory, and which reach one another's, for `lockstep
/// doctor`. Does not throw.
std::vector<Diagnostic> probe();

}  // namespace lockstep::gpu
