#pragma once
// The mean of losses of elements over a batch. Every image has sums of its own, each of a fixed
// number of rows, which are added in the images' order: so a sum does not depend on threads.

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"

namespace lockstep {

/// `a`: ElementLosses or MeanSquaredError, of the operation of that name. `sum_rows(share, begin,
/// end)` returns the sum over these rows, which are of one image, and writes their gradient, times
/// `share`: the image's part of the one given.
template <typename Arguments, typename SumRows>
void add_mean_loss(const char* operation, const Arguments& a, float share, CpuContext& cpu,
                   const SumRows& sum_rows) {
  constexpr std::int64_t kTaskElements = 16384;  // of a partial sum, where a row has not more
  const Shape& shape = a.output.shape;
  check_target(shape, a.target);
  check_alike(operation, {&a.output, &a.grad_output});
  check_fp32(operation, {&a.output});
  const double normalizer = a.normalizer.get();
  const std::int64_t image = shape.rows_per_sample();
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskElements / shape.channels());
  const std::int64_t per_image = (image + rows - 1) / rows;
  const std::int64_t tasks = shape.batch() * per_image;
  auto* sums = static_cast<double*>(cpu.scratch(static_cast<std::size_t>(tasks) * sizeof(double)));
  parallel_for(tasks, std::min(rows, image) * shape.channels(), cpu.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t n = t / per_image, row = t % per_image * rows;
                   sums[t] = sum_rows(share * weight_of(a.sample_weights, n), n * image + row,
                                      n * image + std::min(image, row + rows));
                 }
               });
  double total = 0;
  for (std::int64_t n = 0; n < shape.batch(); ++n) {
    const double* parts = sums + n * per_image;
    const double sum = std::accumulate(parts, parts + per_image, 0.0);
    const double weighted = sum * static_cast<double>(weight_of(a.sample_weights, n));
    const double loss = normalizer == 0 ? 0 : weighted / normalizer;
    if (a.image_losses != nullptr) a.image_losses[n] += loss;
    total += loss;
  }
  *a.loss += total;
}

}  // namespace lockstep
