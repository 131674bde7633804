#include "kernels/emulated_gpu.h"

#include <cstring>

#include "kernels/operations/image_sums.h"
#include "kernels/operations/launchers.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

Tensor flat(const ConvGeometry& geometry, const float* weight) {
  return {const_cast<float*>(weight), Shape{1, geometry.weight_elements()}};
}

std::vector<NamedBackend> emulated_gpu(bool sums_by_image) {
  std::vector<NamedBackend> backends;
  backends.push_back({"emulated GPU", std::make_unique<EmulatedGpu>(3, sums_by_image), kGpuTypes});
  return backends;
}

}  // namespace

void HostConvolutions::conv2d_forward(const ConvGeometry& geometry, const Tensor& x,
                                      const float* weight, const float* bias, const Tensor& y) {
  check_conv2d(ConvPass::kForward, geometry, x, weight, y);
  const Wide wide_y = zeros(y);
  host_.convolutions().conv2d_forward(geometry, widened(x).tensor,
                                      rounded(geometry, weight, x.dtype).tensor.floats(), bias,
                                      wide_y.tensor);
  gpu::copy(gpu_, wide_y.tensor, y, false);
}

void HostConvolutions::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                            const float* weight, const Tensor& grad_x) {
  check_conv2d(ConvPass::kBackwardData, geometry, grad_x, weight, grad_y);
  const Wide wide_x = zeros(grad_x);
  host_.convolutions().conv2d_backward_data(geometry, widened(grad_y).tensor,
                                            rounded(geometry, weight, grad_y.dtype).tensor.floats(),
                                            wide_x.tensor);
  gpu::copy(gpu_, wide_x.tensor, grad_x, false);
}

void HostConvolutions::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                               const Tensor& grad_y, float* grad_weight,
                                               float* grad_bias) {
  check_conv2d(ConvPass::kBackwardWeights, geometry, x, grad_weight, grad_y);
  if (x.shape.batch() == 0) return;
  const std::int64_t parts = gpu_.sums_by_image ? x.shape.batch() : 1;
  const std::int64_t images = x.shape.batch() / parts;
  gpu::add_in_tree(
      gpu_, parts, geometry.weight_elements(), grad_weight, [&](std::int64_t part, float* sum) {
        const Tensor target = flat(geometry, sum);
        const Wide sums = zeros(target);
        host_.convolutions().conv2d_backward_weights(
            geometry, widened(x.sample_range(part * images, images)).tensor,
            widened(grad_y.sample_range(part * images, images)).tensor, sums.tensor.floats(),
            nullptr);
        gpu::copy(gpu_, rounded(geometry, sums.tensor.floats(), x.dtype).tensor, target, true);
      });
  if (grad_bias == nullptr) return;
  const Wide unused = zeros(flat(geometry, grad_weight));
  host_.convolutions().conv2d_backward_weights(geometry, widened(x).tensor, widened(grad_y).tensor,
                                               unused.tensor.floats(), grad_bias);
}

HostConvolutions::Wide HostConvolutions::zeros(const Tensor& like) {
  Storage memory = host_.allocate(sizeof(float) * static_cast<std::size_t>(like.shape.elements()));
  const Tensor tensor(memory.data(), like.shape);
  return {std::move(memory), tensor};
}

HostConvolutions::Wide HostConvolutions::widened(const Tensor& tensor) {
  Wide wide = zeros(tensor);
  gpu::copy(gpu_, tensor, wide.tensor, false);
  return wide;
}

HostConvolutions::Wide HostConvolutions::rounded(const ConvGeometry& geometry, const float* weight,
                                                 DType dtype) {
  const Tensor from = flat(geometry, weight);
  const Wide memory = zeros(from);
  const Tensor narrow(memory.tensor.data, from.shape, dtype);
  gpu::copy(gpu_, from, narrow, false);
  return widened(narrow);
}

EmulatedGpu::EmulatedGpu(int multiprocessors, bool sums_by_image)
    : host_(cpu_backend()),
      gpu_(context()),
      counters_(gpu::Context::kCounters),
      convolutions_(*host_, gpu_),
      optimizer_(gpu_) {
  gpu_.sums_by_image = sums_by_image;
  gpu_.multiprocessors = multiprocessors;
  gpu_.counters = counters_.data();
  gpu_.scratch = [this](std::size_t bytes) { return renew(scratch_, bytes); };
  gpu_.sums = [this](std::size_t bytes) { return renew(sums_, bytes); };
}

void* EmulatedGpu::renew(Block& block, std::size_t bytes) {
  block.reset(::operator new(bytes, kAlignment));
  std::memset(block.get(), 0xFF, bytes);
  return block.get();
}

std::vector<NamedBackend> available_backends() { return emulated_gpu(false); }

std::vector<NamedBackend> backends_by_image() { return emulated_gpu(true); }

}  // namespace lockstep::test
