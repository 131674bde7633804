// Mean squared error with its gradient. Every image has sums of its own, each of a fixed number of
// rows, which are added in the images' order.

#include <algorithm>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/vec.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"

namespace lockstep {
namespace {

using vec::Floats;

constexpr std::int64_t kTaskElements = 16384;  // of a partial sum, where a row has not more

/// Sums of squares, lane by lane: the square of a float is exact in double.
struct Squares {
  double lanes[vec::kLanes] = {};

  [[gnu::always_inline]] void add(Floats differences) {
    for (int k = 0; k < vec::kLanes; ++k) {
      const auto difference = static_cast<double>(differences[k]);
      lanes[k] += difference * difference;
    }
  }
  double total() const {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
};

/// Elements that lie side by side in all tensors. `gradient` may be null.
void add_stretch(const float* output, const float* target, float* gradient, std::int64_t elements,
                 float share, Squares& squares) {
  vec::for_each_lanes(elements, [&](std::int64_t i, std::int64_t lanes) {
    const Floats difference = vec::load(output + i, lanes) - vec::load(target + i, lanes);
    if (gradient != nullptr) vec::store(gradient + i, difference * share, lanes);
    squares.add(difference);
  });
}

bool all_dense(const MeanSquaredError& a) {
  return a.output.dense() && a.target.dense() && (!a.grad_output || a.grad_output.dense());
}

/// The squares of rows [begin, end); writes their gradient when asked for.
double rows_squares(const MeanSquaredError& a, float share, std::int64_t begin, std::int64_t end) {
  const std::int64_t channels = a.output.shape.channels();
  const std::int64_t rows = all_dense(a) ? end - begin : 1;  // of a stretch
  Squares squares;
  for (std::int64_t row = begin; row < end; row += rows) {
    float* gradient =
        a.grad_output ? a.grad_output.floats() + row * a.grad_output.row_stride : nullptr;
    add_stretch(a.output.floats() + row * a.output.row_stride,
                a.target.floats() + row * a.target.row_stride, gradient, rows * channels, share,
                squares);
  }
  return squares.total();
}

}  // namespace

void CpuBackend::mean_squared_error(const MeanSquaredError& arguments) {
  const Shape& shape = arguments.output.shape;
  if (shape.elements() == 0) return;
  check_target(shape, arguments.target);
  check_alike("mean_squared_error", {&arguments.output, &arguments.grad_output});
  check_fp32("mean_squared_error", {&arguments.output});
  const double normalizer = arguments.normalizer.get();
  const float share = squared_error_share(normalizer, arguments.grad_scale.get());
  const float* weights = arguments.sample_weights;
  const std::int64_t image = shape.rows_per_sample();
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskElements / shape.channels());
  const std::int64_t per_image = (image + rows - 1) / rows;
  const std::int64_t tasks = shape.batch() * per_image;
  auto* sums = static_cast<double*>(scratch(static_cast<std::size_t>(tasks) * sizeof(double)));
  parallel_for(tasks, std::min(rows, image) * shape.channels(), threads_,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t n = t / per_image;
                   const std::int64_t first = n * image;
                   const std::int64_t row = t % per_image * rows;
                   sums[t] = rows_squares(arguments, share * weight_of(weights, n), first + row,
                                          first + std::min(image, row + rows));
                 }
               });
  double total = 0;
  for (std::int64_t n = 0; n < shape.batch(); ++n) {
    const double* parts = sums + n * per_image;
    const double squares = std::accumulate(parts, parts + per_image, 0.0);
    const double weighted = squares * static_cast<double>(weight_of(weights, n));
    const double loss = normalizer == 0 ? 0 : weighted / normalizer;
    if (arguments.image_losses != nullptr) arguments.image_losses[n] += loss;
    total += loss;
  }
  *arguments.loss += total;
}

}  // namespace lockstep
