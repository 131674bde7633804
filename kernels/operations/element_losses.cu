// Losses of elements whose formula is one of formulas.h. The blocks take chunks of images, each of
// which has one partial sum, whatever the grid; the last block adds them up.

#include "backend/formulas.h"
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

template <typename T, typename Formula>
struct ElementTask {
  Formula formula;
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

template <typename Formula>
__device__ LossElement element_of(const Formula& formula, float output, float target,
                                  std::int64_t channel) {
  if constexpr (requires { formula(output, target, channel); }) {
    return formula(output, target, channel);
  } else {
    return static_cast<void>(channel), formula(output, target);
  }
}

/// The losses of the calling thread's packs [begin, end) of the image whose first row is `first`;
/// writes their gradient.
template <int kWidth, typename T, typename Formula>
__device__ double chunk_losses(const ElementTask<T, Formula>& task, float share, std::int32_t first,
                               std::int32_t begin, std::int32_t end) {
  double losses = 0;
  for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end; i += kThreads) {
    const auto [row, pack] = task.packs.place(i);
    const std::int32_t c = pack * kWidth;
    const auto output = load_pack<kWidth>(task.output.row(first + row) + c);
    const auto target = load_pack<kWidth>(task.target.row(first + row) + c);
    float gradient[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      const LossElement element =
          element_of(task.formula, output[k], target[k], std::int64_t{c} + k);
      gradient[k] = element.derivative * share;
      losses += element.loss;
    }
    if (task.gradient.data != nullptr) store_rounded(task.gradient.row(first + row) + c, gradient);
  }
  return losses;
}

template <typename T, int kWidth, typename Formula>
__global__ void element_losses_kernel(ElementTask<T, Formula> task) {
  const double normalizer = task.normalizer.get();
  const float share = mean_share(normalizer, task.grad_scale.get());
  for (auto chunk = static_cast<std::int32_t>(blockIdx.x); chunk < task.chunks;
       chunk += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t image = chunk / task.by_image_chunks;
    const std::int32_t begin = (chunk - image * task.image_chunks) * kChunkPacks;
    const std::int32_t left = task.image_packs - begin;
    const std::int32_t end = begin + (left < kChunkPacks ? left : kChunkPacks);
    const float weight = weight_of(task.sample_weights, image);
    const double sum =
        block_sum(chunk_losses<kWidth>(task, share * weight, image * task.image_rows, begin, end));
    if (threadIdx.x == 0) task.partials[chunk] = static_cast<double>(weight) * sum;
  }
  add_partials(task.partials, task.chunks, task.counter, normalizer, task.loss);
}

template <typename T, typename Formula>
ElementTask<T, Formula> task_of(const Context& context, const ElementLosses& arguments,
                                const Formula& formula, int width, std::int64_t first,
                                std::int64_t count) {
  const Tensor output = arguments.output.sample_range(first, count);
  const std::int64_t rows = output.shape.rows_per_sample();
  const std::int64_t packs = rows * (output.shape.channels() / width);
  const std::int64_t chunks = (packs + kChunkPacks - 1) / kChunkPacks;
  const auto bytes = static_cast<std::size_t>(count * chunks) * sizeof(double);
  const Tensor& gradient = arguments.grad_output;
  return {formula,
          static_cast<std::int32_t>(count * chunks),
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

template <typename Formula>
void add_losses_of(const Context& context, const ElementLosses& arguments, const Formula& formula) {
  const Tensor& output = arguments.output;
  with_packs({&output, &arguments.target, &arguments.grad_output}, [&](auto element, auto width) {
    using T = decltype(element);
    for_image_runs("element_losses", width, {&output}, [&](std::int64_t first, std::int64_t count) {
      const auto task = task_of<T>(context, arguments, formula, width, first, count);
      const unsigned blocks = blocks_for(task.chunks, 1, std::int64_t{8} * context.multiprocessors);
      launch(element_losses_kernel<T, width(), Formula>, blocks, kThreads, context.stream, task);
    });
  });
}

/// Calls body(formula) with one of formulas.h; returns whether it is one.
template <typename Body>
bool with_formula(const ElementFormula& any, const Body& body) {
  const auto is = [&]<typename Formula>(const FormulaOf<Formula>* formula) {
    if (formula != nullptr) body(formula->formula());
    return formula != nullptr;
  };
  return is(dynamic_cast<const FormulaOf<SquaredError>*>(&any)) ||
         is(dynamic_cast<const FormulaOf<AbsoluteError>*>(&any)) ||
         is(dynamic_cast<const FormulaOf<HuberError>*>(&any)) ||
         is(dynamic_cast<const FormulaOf<BinaryCrossEntropy>*>(&any));
}

void add_element_losses(const Context& context, const ElementLosses& arguments) {
  if (arguments.output.shape.elements() == 0) return;
  const bool known = with_formula(
      *arguments.formula, [&](const auto& formula) { add_losses_of(context, arguments, formula); });
  LOCKSTEP_CHECK(known, "element_losses: there is no kernel for this formula");
}

}  // namespace

bool GpuLosses::computes(const ElementFormula& formula) const {
  return with_formula(formula, [](const auto&) {});
}

void GpuLosses::element_losses(const ElementLosses& arguments) {
  check_operands(arguments);
  check_parts(context_, "element_losses", arguments.image_losses == nullptr);
  const Context& context = context_.entered();
  if (!context.sums_by_image) return add_element_losses(context, arguments);
  add_losses_by_image(context, arguments.output.shape.batch(), arguments.image_losses,
                      arguments.loss, [&](std::int64_t image, double* loss) {
                        ElementLosses one = arguments;
                        one.output = image_of(arguments.output, image);
                        one.target = image_of(arguments.target, image);
                        one.grad_output = image_of(arguments.grad_output, image);
                        one.sample_weights = weights_from(arguments.sample_weights, image);
                        one.loss = loss;
                        add_element_losses(context, one);
                      });
}

}  // namespace lockstep::gpu
