// Losses of elements, whatever their formula is. Every image has sums of its own, each of a fixed
// number of rows, which are added in the images' order.

#include <algorithm>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTaskElements = 16384;  // of a partial sum, where a row has not more

ElementRows rows_of(const ElementLosses& a, float share, std::int64_t begin, std::int64_t end) {
  const bool gradient = static_cast<bool>(a.grad_output);
  return {
      .output = a.output.floats() + begin * a.output.row_stride,
      .target = a.target.floats() + begin * a.target.row_stride,
      .gradient = gradient ? a.grad_output.floats() + begin * a.grad_output.row_stride : nullptr,
      .output_stride = a.output.row_stride,
      .target_stride = a.target.row_stride,
      .gradient_stride = gradient ? a.grad_output.row_stride : 0,
      .rows = end - begin,
      .channels = a.output.shape.channels(),
      .share = share};
}

}  // namespace

void CpuBackend::element_losses(const ElementLosses& arguments) {
  const Shape& shape = arguments.output.shape;
  if (shape.elements() == 0) return;
  check_target(shape, arguments.target);
  check_alike("element_losses", {&arguments.output, &arguments.grad_output});
  check_fp32("element_losses", {&arguments.output});
  const double normalizer = arguments.normalizer.get();
  const float share = mean_share(normalizer, arguments.grad_scale.get());
  const float* weights = arguments.sample_weights;
  const std::int64_t image = shape.rows_per_sample();
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskElements / shape.channels());
  const std::int64_t per_image = (image + rows - 1) / rows;
  const std::int64_t tasks = shape.batch() * per_image;
  auto* sums = static_cast<double*>(scratch(static_cast<std::size_t>(tasks) * sizeof(double)));
  parallel_for(tasks, std::min(rows, image) * shape.channels(), threads_,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t n = t / per_image, row = t % per_image * rows;
                   const std::int64_t last = n * image + std::min(image, row + rows);
                   sums[t] = arguments.formula->sum(
                       rows_of(arguments, share * weight_of(weights, n), n * image + row, last));
                 }
               });
  double total = 0;
  for (std::int64_t n = 0; n < shape.batch(); ++n) {
    const double* parts = sums + n * per_image;
    const double sum = std::accumulate(parts, parts + per_image, 0.0);
    const double weighted = sum * static_cast<double>(weight_of(weights, n));
    const double loss = normalizer == 0 ? 0 : weighted / normalizer;
    if (arguments.image_losses != nullptr) arguments.image_losses[n] += loss;
    total += loss;
  }
  *arguments.loss += total;
}

}  // namespace lockstep
