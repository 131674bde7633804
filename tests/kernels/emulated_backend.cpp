#include "kernels/emulated_context.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/image_sums.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

/// A backend whose kernels are those of kernels/*.cu, run by the emulation in host memory. Its
/// convolutions are the CPU's, in fp32: operands of a narrower type are widened, and weights,
/// results and gradients of weights are rounded to that type as the GPU's plans do.
class EmulatedBackend final : public gpu::GpuOperations {
 public:
  explicit EmulatedBackend(bool sums_by_image)
      : GpuOperations(sums_by_image), host_(make_backend(Device{}, 1)) {
    context() = emulated_;
  }

  const Device& device() const override { return host_->device(); }
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

  void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType, bool backward,
                      bool grad_input) override {
    host_->prepare_conv2d(geometry, input, DType::kFloat32, backward, grad_input);
  }
  void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                      const float* bias, const Tensor& y) override {
    const Wide wide_y = zeros(y);
    host_->conv2d_forward(geometry, widened(x).tensor,
                          rounded(geometry, weight, x.dtype).tensor.floats(), bias, wide_y.tensor);
    copy(wide_y.tensor, y, false);
  }
  void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                            const Tensor& grad_x) override {
    const Wide wide_x = zeros(grad_x);
    host_->conv2d_backward_data(geometry, widened(grad_y).tensor,
                                rounded(geometry, weight, grad_y.dtype).tensor.floats(),
                                wide_x.tensor);
    copy(wide_x.tensor, grad_x, false);
  }
  void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                               float* grad_weight, float* grad_bias) override {
    if (x.shape.batch() == 0) return;
    const std::int64_t parts = sums_by_image() ? x.shape.batch() : 1;
    const std::int64_t images = x.shape.batch() / parts;
    gpu::add_in_tree(emulated_, parts, geometry.weight_elements(), grad_weight,
                     [&](std::int64_t part, float* sum) {
                       const Tensor target = flat(geometry, sum);
                       const Wide sums = zeros(target);
                       host_->conv2d_backward_weights(
                           geometry, widened(x.sample_range(part * images, images)).tensor,
                           widened(grad_y.sample_range(part * images, images)).tensor,
                           sums.tensor.floats(), nullptr);
                       copy(rounded(geometry, sums.tensor.floats(), x.dtype).tensor, target, true);
                     });
    if (grad_bias == nullptr) return;
    const Wide unused = zeros(flat(geometry, grad_weight));
    host_->conv2d_backward_weights(geometry, widened(x).tensor, widened(grad_y).tensor,
                                   unused.tensor.floats(), grad_bias);
  }

 private:
  /// A dense fp32 tensor in memory of its own.
  struct Wide {
    Storage memory;
    Tensor tensor;
  };

  static Tensor flat(const ConvGeometry& geometry, const float* weight) {
    return {const_cast<float*>(weight), Shape{1, geometry.weight_elements()}};
  }
  /// Zeros of the shape of `like`.
  Wide zeros(const Tensor& like) {
    Storage memory = allocate(sizeof(float) * static_cast<std::size_t>(like.shape.elements()));
    const Tensor tensor(memory.data(), like.shape);
    return {std::move(memory), tensor};
  }
  Wide widened(const Tensor& tensor) {
    Wide wide = zeros(tensor);
    copy(tensor, wide.tensor, false);
    return wide;
  }
  /// Weights as a plan of `dtype` has them.
  Wide rounded(const ConvGeometry& geometry, const float* weight, DType dtype) {
    const Tensor from = flat(geometry, weight);
    const Wide memory = zeros(from);
    const Tensor narrow(memory.tensor.data, from.shape, dtype);
    copy(from, narrow, false);
    return widened(narrow);
  }

  std::unique_ptr<Backend> host_;
  EmulatedContext emulated_;
};

std::vector<NamedBackend> emulated_gpu(bool sums_by_image) {
  std::vector<NamedBackend> backends;
  backends.push_back({"emulated GPU", std::make_unique<EmulatedBackend>(sums_by_image), kGpuTypes});
  return backends;
}

}  // namespace

std::vector<NamedBackend> available_backends() { return emulated_gpu(false); }

std::vector<NamedBackend> backends_by_image() { return emulated_gpu(true); }

}  // namespace lockstep::test
