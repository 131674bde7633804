#pragma once
// The backend of one replica on a GPU: its stream, its memory and its convolutions. The other
// operations are the kernels of operations/gpu_operations.h. Several replicas may share a GPU; each
// has a backend of its own.

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
  std::unique_ptr<Offload> make_offload(std::span<const Tensor> tensors) override;
  void synchronize() override;

  ConvolutionOperations& convolutions() override { return convolutions_; }
  OptimizerOperations& optimizer() override { return optimizer_; }

 private:
  const Context& prepared_context(bool sums_by_image);

  const Device device_;
  StreamOwner stream_;
  StreamOwner staging_stream_;
  Event done_;    // of all that the replica's stream was given; for the host
  Event staged_;  // in the staging stream
  Event taken_;   // in the replica's
  DeviceMemory memory_;
  Storage counters_;
  DeviceScratch kernel_scratch_;
  DeviceScratch sums_;  // Context::sums
  DeviceScratch convolution_scratch_;
  // One for each stream, so that no copy of the next batch waits behind a step's own.
  UploadRing uploads_, staging_uploads_;
  PeerOptimizer optimizer_;
  CudnnConvolutions convolutions_;
};

/// Driver, libraries, devices with their memory, and which reach one another's, for `lockstep
/// doctor`. Does not throw.
std::vector<Diagnostic> probe();

}  // namespace lockstep::gpu
