#include "kernels/emulated_context.h"
#include "kernels/operations/gpu_operations.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

/// A backend whose kernels are those of kernels/*.cu, run by the emulation in host memory; its
/// convolutions are the CPU's.
class EmulatedBackend final : public gpu::GpuOperations {
 public:
  EmulatedBackend() : host_(make_backend(Device{}, 1)) { context() = emulated_; }

  const Device& device() const override { return host_->device(); }
  Storage allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  std::size_t allocated_bytes() const override { return host_->allocated_bytes(); }
  void upload(const Tensor& destination, const void* source) override {
    host_->upload(destination, source);
  }
  void download(void* destination, const Tensor& source) override {
    host_->download(destination, source);
  }
  void synchronize() override {}

  void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, bool backward,
                      bool grad_input) override {
    host_->prepare_conv2d(geometry, input, backward, grad_input);
  }
  void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                      const float* bias, const Tensor& y) override {
    host_->conv2d_forward(geometry, x, weight, bias, y);
  }
  void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                            const Tensor& grad_x) override {
    host_->conv2d_backward_data(geometry, grad_y, weight, grad_x);
  }
  void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                               float* grad_weight, float* grad_bias) override {
    host_->conv2d_backward_weights(geometry, x, grad_y, grad_weight, grad_bias);
  }

 private:
  std::unique_ptr<Backend> host_;
  EmulatedContext emulated_;
};

}  // namespace

std::vector<NamedBackend> available_backends() {
  std::vector<NamedBackend> backends;
  backends.push_back({"emulated GPU", std::make_unique<EmulatedBackend>(), kGpuTypes});
  return backends;
}

}  // namespace lockstep::test
