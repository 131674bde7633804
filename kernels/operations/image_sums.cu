// Additions between sums are copies that accumulate. Losses are few: one thread adds them up.

#include "kernels/operations/image_sums.h"
#include "kernels/operations/launchers.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {
namespace {

constexpr std::int64_t kAlignment = 64;  // floats

Tensor flat(const float* values, std::int64_t elements) {
  return {const_cast<float*>(values), Shape{1, elements}};  // read only where it is a source
}

__global__ void add_losses_kernel(const double* losses, std::int64_t images, double* image_losses,
                                  double* total) {
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (std::int64_t image = 0; image < images; ++image) {
    if (image_losses != nullptr) image_losses[image] += losses[image];
    sum += losses[image];
  }
  *total += sum;
}

}  // namespace

WaitingSums::WaitingSums(const Context& context, std::int64_t most, std::int64_t elements)
    : context_(context),
      elements_(elements),
      stride_((elements + kAlignment - 1) / kAlignment * kAlignment),
      memory_(static_cast<float*>(
          context.sums(static_cast<std::size_t>(most * stride_) * sizeof(float)))) {}

void WaitingSums::clear(int sum) const { fill(context_, flat(at(sum), elements_), 0); }

void WaitingSums::take(int sum, const float* values, bool first) const {
  copy(context_, flat(values, elements_), flat(at(sum), elements_), !first);
}

void accumulate(const Context& context, const float* from, std::int64_t elements, float* to) {
  copy(context, flat(from, elements), flat(to, elements), true);
}

double* cleared_losses(const Context& context, std::int64_t images) {
  const std::int64_t bytes = images * static_cast<std::int64_t>(sizeof(double));
  void* losses = context.sums(static_cast<std::size_t>(bytes));
  fill(context, Tensor(losses, Shape{1, bytes}, DType::kUInt8), 0);
  return static_cast<double*>(losses);
}

void add_losses(const Context& context, const double* losses, std::int64_t images,
                double* image_losses, double* total) {
  launch(add_losses_kernel, 1, kWarpSize, context.stream, losses, images, image_losses, total);
}

}  // namespace lockstep::gpu
