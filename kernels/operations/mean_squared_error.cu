// Mean squared error. The blocks take chunks of images, each of which has one partial sum, whatever
// the grid; the last block adds them up.

#include "backend/formulas.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/image_sums.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = 256;
constexpr std::int32_t kChunkPacks = 8 * kThreads;  // of one partial sum

template <typename T>
struct SquaredError {
  std::int32_t chunks, image_chunks;  // of all, of an image
  std::int32_t image_rows, image_packs;
  Divisor by_image_chunks;
  PackRows packs;  // of a row
  Rows<const T> output;
  Rows<const float> target;
  Rows<T> gradient;             // null: only the loss
  const float* sample_weights;  // of the first image on; null: all 1
  DeviceScalar<double> normalizer;
  DeviceScalar<float> grad_scale;
  double* partials;  // [chunks]
  unsigned* counter;
  double* loss;
};

/// The squares of the calling thread's packs [begin, end) of the image whose first row is `first`;
/// writes their gradient.
template <typename T, int kWidth>
__device__ double chunk_squares(const SquaredError<T>& task, float share, std::int32_t first,
                                std::int32_t begin, std::int32_t end) {
  double squares = 0;
  for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += kThreads) {
    const auto [row, pack] = task.packs.place(i);
    const std::int32_t c = pack * kWidth;
    const auto output = load_pack<kWidth>(task.output.row(first + row) + c);
    const auto target = load_pack<kWidth>(task.target.row(first + row) + c);
    float gradient[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      const float difference = output[k] - target[k];
      gradient[k] = difference * share;
      squares += static_cast<double>(difference) * static_cast<double>(difference);
    }
    if (task.gradient.data != nullptr) store_rounded(task.gradient.row(first + row) + c, gradient);
  }
  return squares;
}

template <typename T, int kWidth>
__global__ void mean_squared_error_kernel(SquaredError<T> task) {
  const double normalizer = task.normalizer.get();
  const float share = squared_error_share(normalizer, task.grad_scale.get());
  for (auto chunk = static_cast<std::int32_t>(blockIdx.x); chunk < task.chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t image = chunk / task.by_image_chunks;
    const std::int32_t begin = (chunk - image * task.image_chunks) * kChunkPacks;
    const std::int32_t left = task.image_packs - begin;
    const std::int32_t end = begin + (left < kChunkPacks ? left : kChunkPacks);
    const float weight = weight_of(task.sample_weights, image);
    const double sum = block_sum(
        chunk_squares<T, kWidth>(task, share * weight, image * task.image_rows, begin, end));
    if (threadIdx.x == 0) task.partials[chunk] = static_cast<double>(weight) * sum;
  }
  add_partials(task.partials, task.chunks, task.counter, normalizer, task.loss);
}

template <typename T>
SquaredError<T> task_of(const Context& context, const MeanSquaredError& arguments, int width,
                        std::int64_t first, std::int64_t count) {
  const Tensor output = arguments.output.sample_range(first, count);
  const std::int64_t rows = output.shape.rows_per_sample();
  const std::int64_t packs = rows * (output.shape.channels() / width);
  const std::int64_t chunks = (packs + kChunkPacks - 1) / kChunkPacks;
  const auto bytes = static_cast<std::size_t>(count * chunks) * sizeof(double);
  const Tensor& gradient = arguments.grad_output;
  return {static_cast<std::int32_t>(count * chunks),
          static_cast<std::int32_t>(chunks),
          static_cast<std::int32_t>(rows),
          static_cast<std::int32_t>(packs),
          Divisor(chunks),
          PackRows(output.shape.channels() / width),
          Rows<const T>(output),
          Rows<const float>(arguments.target.sample_range(first, count)),
          Rows<T>(gradient ? gradient.sample_range(first, count) : gradient),
          weights_from(arguments.sample_weights, first),
          arguments.normalizer,
          arguments.grad_scale,
          static_cast<double*>(context.scratch(bytes)),
          context.counters,
          arguments.loss};
}

void add_mean_squared_error(const Context& context, const MeanSquaredError& arguments) {
  const Tensor& output = arguments.output;
  if (output.shape.elements() == 0) return;
  check_target(output.shape, arguments.target);
  check_alike("mean_squared_error", {&output, &arguments.grad_output});
  with_packs({&output, &arguments.target, &arguments.grad_output}, [&](auto element, auto width) {
    using T = decltype(element);
    for_image_runs(
        "mean_squared_error", width, {&output}, [&](std::int64_t first, std::int64_t count) {
          const auto task = task_of<T>(context, arguments, width, first, count);
          const unsigned blocks =
              blocks_for(task.chunks, 1, std::int64_t{8} * context.multiprocessors);
          launch(mean_squared_error_kernel<T, width()>, blocks, kThreads, context.stream, task);
        });
  });
}

}  // namespace

void GpuLosses::mean_squared_error(const MeanSquaredError& arguments) {
  check_operands(arguments);
  check_parts(context_, "mean_squared_error", arguments.image_losses == nullptr);
  const Context& context = context_.entered();
  if (!context.sums_by_image) return add_mean_squared_error(context, arguments);
  add_losses_by_image(context, arguments.output.shape.batch(), arguments.image_losses,
                      arguments.loss, [&](std::int64_t image, double* loss) {
                        MeanSquaredError one = arguments;
                        one.output = image_of(arguments.output, image);
                        one.target = image_of(arguments.target, image);
                        one.grad_output = image_of(arguments.grad_output, image);
                        one.sample_weights = weights_from(arguments.sample_weights, image);
                        one.loss = loss;
                        add_mean_squared_error(context, one);
                      });
}

}  // namespace lockstep::gpu
