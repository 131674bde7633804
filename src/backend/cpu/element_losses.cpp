// Losses of elements, whatever their formula is. Every image has sums of its own, each of a fixed
// number of rows, which are added in the images' order: so a sum does not depend on threads.

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTaskElements = 16384;  // of a partial sum, where a row has not more

Tensor rows_of(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  Tensor rows = tensor;
  rows.shape = {end - begin, tensor.shape.channels()};
  rows.data = static_cast<std::byte*>(tensor.data) +
              static_cast<std::size_t>(begin * tensor.row_stride) * size_of(tensor.dtype);
  return rows;
}

/// The sum over rows [begin, end); writes their gradient. `memory`: of two such stretches.
double sum_rows(const ElementLosses& a, float share, std::int64_t begin, std::int64_t end,
                float* memory) {
  const Tensor stored = rows_of(a.output, begin, end), target = rows_of(a.target, begin, end);
  const Tensor output = in_fp32(stored, memory);
  convert(stored, output, false, 1);
  ElementRows rows{.output = output.floats(),
                   .target = target.floats(),
                   .gradient = nullptr,
                   .output_stride = output.row_stride,
                   .target_stride = target.row_stride,
                   .gradient_stride = 0,
                   .rows = end - begin,
                   .channels = output.shape.channels(),
                   .share = share};
  if (!a.grad_output) return a.formula->sum(rows);
  const Tensor to = rows_of(a.grad_output, begin, end);
  const Tensor gradient = in_fp32(to, memory + output.shape.elements());
  rows.gradient = gradient.floats();
  rows.gradient_stride = gradient.row_stride;
  const double sum = a.formula->sum(rows);
  convert(gradient, to, false, 1);
  return sum;
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
  check_computes(arguments.output.dtype);
  const float share = mean_share(arguments.normalizer.get(), arguments.grad_scale.get());
  const std::int64_t image = shape.rows_per_sample();
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskElements / shape.channels());
  const std::int64_t per_image = (image + rows - 1) / rows;
  const std::int64_t tasks = shape.batch() * per_image;
  const bool copies = arguments.output.dtype != DType::kFloat32;
  const std::int64_t copied = copies ? 2 * rows * shape.channels() : 0;  // of a thread
  auto* sums = static_cast<double*>(
      cpu_.scratch(static_cast<std::size_t>(tasks) * sizeof(double) +
                   static_cast<std::size_t>(cpu_.threads() * copied) * sizeof(float)));
  auto* memory = reinterpret_cast<float*>(sums + tasks);
  parallel_for(tasks, std::min(rows, image) * shape.channels(), cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t n = t / per_image, row = t % per_image * rows;
                   const float of_image = share * weight_of(arguments.sample_weights, n);
                   sums[t] = sum_rows(arguments, of_image, n * image + row,
                                      n * image + std::min(image, row + rows),
                                      memory + omp_get_thread_num() * copied);
                 }
               });
  add_to_loss(arguments, sums, per_image);
}

}  // namespace lockstep
