// Mean squared error with its gradient.

#include "backend/cpu/mean_loss.h"
#include "backend/cpu/vec.h"
#include "backend/required_operands.h"

namespace lockstep {
namespace {

using vec::Floats;

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

void CpuLosses::mean_squared_error(const MeanSquaredError& arguments) {
  check_operands(arguments);
  if (arguments.output.shape.elements() == 0) return;
  const float share = squared_error_share(arguments.normalizer.get(), arguments.grad_scale.get());
  add_mean_loss("mean_squared_error", arguments, share, cpu_,
                [&](float of_image, std::int64_t begin, std::int64_t end) {
                  return rows_squares(arguments, of_image, begin, end);
                });
}

}  // namespace lockstep
