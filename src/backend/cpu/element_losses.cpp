// Losses of elements, whatever their formula is. Every image has sums of its own, each of a fixed
// number of rows, which are added in the images' order: so a sum does not depend on threads.

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"

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

/// Adds the images' sums, of `parts` each, to the loss.
void add_to_loss(const ElementLosses& a, const double* sums, std::int64_t parts) {
  const double normalizer = a.normalizer.get();
  double total = 0;
  for (std::int64_t n = 0; n < a.output.shape.batch(); ++n, sums += parts) {
    const double sum = std::accumulate(sums, sums + parts, 0.0);
    const double weighted = sum * static_cast<double>(weight_of(a.sample_weights, n));
    const double loss = normalizer == 0 ? 0 : weighted / normalizer;
    if (a.image_losses != nullptr) a.image_losses[n] += loss;
    total += loss;
  }
  *a.loss += total;
}

}  // namespace

void CpuLosses::element_losses(const ElementLosses& arguments) {
  check_operands(arguments);
  const Shape& shape = arguments.output.shape;
  if (shape.elements() == 0) return;
  check_target(shape, arguments.target);
  check_alike("element_losses", {&arguments.output, &arguments.grad_output});
  check_fp32("element_losses", {&arguments.output});
  const float share = mean_share(arguments.normalizer.get(), arguments.grad_scale.get());
  const std::int64_t image = shape.rows_per_sample();
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskElements / shape.channels());
  const std::int64_t per_image = (image + rows - 1) / rows;
  const std::int64_t tasks = shape.batch() * per_image;
  auto* sums = static_cast<double*>(cpu_.scratch(static_cast<std::size_t>(tasks) * sizeof(double)));
  parallel_for(tasks, std::min(rows, image) * shape.channels(), cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t n = t / per_image, row = t % per_image * rows;
                   const float of_image = share * weight_of(arguments.sample_weights, n);
                   sums[t] =
                       arguments.formula->sum(rows_of(arguments, of_image, n * image + row,
                                                      n * image + std::min(image, row + rows)));
                 }
               });
  add_to_loss(arguments, sums, per_image);
}

}  // namespace lockstep
