// The optimizer over replicas. The update is one pass: a thread takes a pack of elements, adds up
// the ranks' gradients in rank order, updates state and weight in registers and writes the weight
// to every rank. What of a pack lies outside of its range is left out, one by one.
//
// The ranges of a shard are cut into chunks, which are numbered through: one launch does them all.
// The gradient's squares are added up on the way. A chunk has one partial sum, whatever the grid;
// the last block adds them up.
//
// Where gradients are to be added in a tree, they are added up before the update, which then finds
// one, and their squares are added up block by block (kNormBlock) by a kernel of its own: a block
// of threads takes a block of elements.

#include <algorithm>
#include <cmath>
#include <span>
#include <variant>

#include "backend/formulas.h"
#include "backend/sum_parts.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/image_sums.h"
#include "kernels/operations/launchers.h"
#include "kernels/primitives/launch.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/pack.h"

namespace lockstep::gpu {
namespace {

constexpr int kWidest = kPackWidth<float>;

struct Replicas {
  const float* grads[kMaxRanks];
  float* weights[kMaxRanks];
  const double* losses[kMaxRanks];
  float* state[kMaxSlots];
  int parts;  // gradients
  int ranks;  // weights
  int loss_count;
  DeviceScalar<float> lr = 0.0F;
  DeviceScalar<float> grad_scale = 1.0F;
  DeviceScalar<float> clip = 1.0F;
  float most;  // of a clipped element
  UpdateCount updates = {};
};

constexpr unsigned kThreads = 256;
constexpr int kRounds = 2;  // packs that a thread takes of a chunk
constexpr int kChunk = kRounds * static_cast<int>(kThreads) * kWidest;

constexpr int kMostRanges = 64;  // of a launch

constexpr unsigned kSquaresThreads = 128;  // of a block of elements
constexpr int kSquaresBlocks = 16;         // of a multiprocessor

/// Elements [begin, end) in chunks from the pack on that has the first of them.
struct Range {
  std::int64_t begin, end;
  float weight_decay, lr_scale;
  int first_chunk;

  __host__ __device__ std::int64_t first() const { return begin / kWidest * kWidest; }
};

struct Ranges {
  Range items[kMostRanges];
  int count;
  int chunks;
};

Ranges ranges_of(std::span<const ParameterRange> ranges) {
  Ranges result{};
  for (const ParameterRange& range : ranges) {
    if (range.begin >= range.end) continue;
    Range& item = result.items[result.count++];
    item = {range.begin, range.end, range.weight_decay, range.lr_scale, result.chunks};
    result.chunks += static_cast<int>((range.end - item.first() + kChunk - 1) / kChunk);
  }
  return result;
}

/// That of a chunk.
__device__ const Range& range_at(const Ranges& ranges, int chunk) {
  int low = 0;
  for (int high = ranges.count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (ranges.items[middle].first_chunk <= chunk ? low : high) = middle;
  }
  return ranges.items[low];
}

/// Where the gradient's squares are added up.
struct SquaredNorm {
  double* partials;  // [chunks]
  unsigned* counter;
  double* result;  // null: not wanted
};

// What every GPU and Toolkit takes as a kernel's arguments.
static_assert(sizeof(Replicas) + sizeof(Optimizer) + sizeof(Ranges) + sizeof(SquaredNorm) <= 4096);

/// `Ranks`: has losses and how many there are.
template <typename Ranks>
__device__ bool losses_are_finite(const Ranks& ranks) {
  bool finite = true;
  for (int rank = 0; rank < ranks.loss_count; ++rank) {
    finite = finite && std::isfinite(*ranks.losses[rank]);
  }
  return finite;
}

/// That of the optimizer. One thread of the block computes what is computed in double, of which
/// many GPUs do little at a time.
template <typename Rule>
__device__ auto shared_element(const Rule& rule, const UpdateCount& updates) {
  using Element = typename Rule::Element;
  if constexpr (Element::kMadeInDouble) {
    auto& shared = block_shared<Element>();
    if (threadIdx.x == 0) shared = Element(rule, updates.get());
    __syncthreads();
    return Element(shared);
  } else {
    return Element(rule, updates.get());
  }
}

/// In one instruction: in a loop over ranks nvcc stores a pack's elements one by one. REQUIRES:
/// `target` is aligned to kWidth elements.
template <int kWidth>
__device__ void store_at_once(float* target, const float (&values)[kWidth]) {
#if defined(__CUDA_ARCH__)
  if constexpr (kWidth == 4) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(target)),
                 "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
                 : "memory");
    return;
  }
#endif
  store_rounded(target, values);
}

/// What is the same for all elements of a range.
template <typename Element>
struct Step {
  Element element;
  float lr, grad_scale, weight_decay, clip, most;
};

/// Elements [at, at + kWidth); returns the sum of their gradients' squares.
template <int kWidth, typename Element>
__device__ double update(const Replicas& replicas, const Step<Element>& step, std::int64_t at) {
  float gradient[kWidth] = {};
  for (int part = 0; part < replicas.parts; ++part) {
    const auto values = load_pack<kWidth>(replicas.grads[part] + at);
    for (int k = 0; k < kWidth; ++k) gradient[k] += values[k];
  }
  const auto weight = load_pack<kWidth>(replicas.weights[0] + at);
  float slots[Element::kSlots][kWidth];
  LOCKSTEP_UNROLL
  for (int s = 0; s < Element::kSlots; ++s) load_values(replicas.state[s] + at, slots[s]);
  float new_weight[kWidth];
  double squares = 0;
  LOCKSTEP_UNROLL
  for (int k = 0; k < kWidth; ++k) {
    gradient[k] *= step.grad_scale;
    float state[Element::kSlots];
    LOCKSTEP_UNROLL
    for (int s = 0; s < Element::kSlots; ++s) state[s] = slots[s][k];
    new_weight[k] = step.element(weight[k], clipped(gradient[k], step.clip, step.most), state,
                                 step.lr, step.weight_decay);
    LOCKSTEP_UNROLL
    for (int s = 0; s < Element::kSlots; ++s) slots[s][k] = state[s];
    const auto wide = static_cast<double>(gradient[k]);
    squares += wide * wide;  // the product is exact
  }
  LOCKSTEP_UNROLL
  for (int s = 0; s < Element::kSlots; ++s) store_at_once(replicas.state[s] + at, slots[s]);
  for (int rank = 0; rank < replicas.ranks; ++rank) {
    store_at_once(replicas.weights[rank] + at, new_weight);
  }
  return squares;
}

/// As update(), of those elements that are in the range.
template <int kWidth, typename Element>
__device__ double update_within(const Replicas& replicas, const Step<Element>& step,
                                const Range& range, std::int64_t at) {
  if (at >= range.begin && at + kWidth <= range.end) return update<kWidth>(replicas, step, at);
  double squares = 0;
  for (int k = 0; k < kWidth; ++k) {
    if (at + k < range.begin || at + k >= range.end) continue;
    squares += update<1>(replicas, step, at + k);
  }
  return squares;
}

/// kWidth: of the packs, 1 where memory is not aligned for more.
template <int kWidth, typename Rule>
__global__ void optimizer_kernel(Replicas replicas, Rule rule, Ranges ranges, SquaredNorm norm) {
  if (!losses_are_finite(replicas)) return;
  using Element = typename Rule::Element;
  const Element element = shared_element(rule, replicas.updates);
  const float lr = replicas.lr.get(), grad_scale = replicas.grad_scale.get();
  const float clip = replicas.clip.get();
  for (int chunk = static_cast<int>(blockIdx.x); chunk < ranges.chunks;
       chunk += static_cast<int>(gridDim.x)) {
    const Range range = range_at(ranges, chunk);
    const std::int64_t first =
        range.first() + static_cast<std::int64_t>(chunk - range.first_chunk) * kChunk;
    const Step<Element> step{element, lr * range.lr_scale, grad_scale, range.weight_decay,
                             clip,    replicas.most};
    double squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < kChunk / kWidth; i += kThreads) {
      squares += update_within<kWidth>(replicas, step, range, first + i * kWidth);
    }
    if (norm.result == nullptr) continue;
    const double sum = block_sum(squares);
    if (threadIdx.x == 0) norm.partials[chunk] = sum;
  }
  if (norm.result == nullptr) return;
  add_partials(norm.partials, ranges.chunks, norm.counter, 1, norm.result);
}

/// What a thread has of the squares of the gradient's elements [begin, end), of a block of
/// kNormBlock that begins at `first`.
__device__ double squares_within(const Replicas& replicas, float grad_scale, std::int64_t first,
                                 std::int64_t begin, std::int64_t end) {
  double squares = 0;
  for (std::int64_t i = first + threadIdx.x; i < first + kNormBlock; i += blockDim.x) {
    if (i < begin || i >= end) continue;
    float gradient = 0;
    for (int part = 0; part < replicas.parts; ++part) gradient += replicas.grads[part][i];
    const auto wide = static_cast<double>(gradient * grad_scale);
    squares += wide * wide;  // the product is exact
  }
  return squares;
}

/// squares [block] += those of the block's elements that are in a range, range by range: the bits
/// do not depend on which ranges a launch has got. Blocks [first, first + count).
__global__ void block_squares_kernel(Replicas replicas, Ranges ranges, std::int64_t first,
                                     std::int64_t count, double* squares) {
  if (!losses_are_finite(replicas)) return;
  const float grad_scale = replicas.grad_scale.get();
  for (std::int64_t block = first + blockIdx.x; block < first + count; block += gridDim.x) {
    const std::int64_t at = block * kNormBlock;
    for (int i = 0; i < ranges.count; ++i) {
      const Range& range = ranges.items[i];
      if (range.end <= at || range.begin >= at + kNormBlock) continue;
      const double sum =
          block_sum(squares_within(replicas, grad_scale, at, range.begin, range.end));
      if (threadIdx.x == 0) squares[block] += sum;
    }
  }
}

void add_block_squares(const Context& context, const Replicas& replicas,
                       std::span<const ParameterRange> some, double* squares) {
  const Ranges ranges = ranges_of(some);
  if (ranges.count == 0) return;
  const std::int64_t first = ranges.items[0].begin / kNormBlock;
  const std::int64_t end = (ranges.items[ranges.count - 1].end + kNormBlock - 1) / kNormBlock;
  const unsigned blocks =
      blocks_for(end - first, 1, std::int64_t{kSquaresBlocks} * context.multiprocessors);
  launch(block_squares_kernel, blocks, kSquaresThreads, context.stream, replicas, ranges, first,
         end - first, squares);
}

struct RanksSquares {
  GradientSquares ranks[kMaxRanks];
  int count;
};

/// One block. A thread adds up the blocks of the gradient whose numbers are its own, in a round of
/// threads, in ascending order: nothing depends on how ranks share them.
__global__ void clip_factor_kernel(RanksSquares squares, float max_norm, float* factor) {
  double own = 0;
  for (int rank = 0; rank < squares.count; ++rank) {
    const GradientSquares& some = squares.ranks[rank];
    const auto first = static_cast<unsigned>(some.first % blockDim.x);
    for (std::int64_t i = (threadIdx.x + blockDim.x - first) % blockDim.x; i < some.count;
         i += blockDim.x) {
      own += some.blocks[i];
    }
  }
  const double sum = block_sum(own);
  if (threadIdx.x == 0) *factor = factor_for_norm(std::sqrt(sum), max_norm);
}

struct RanksLosses {
  const double* losses[kMaxRanks];
  int loss_count;
};

__global__ void average_kernel(RanksLosses losses, const float* weights, float* average,
                               std::int64_t elements, float share, UpdateCount updates) {
  if (!losses_are_finite(losses)) return;
  const float own_share = updates.get() == 1 ? 1.0F : share;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements;
       i += stride) {
    average[i] = moved_average(average[i], weights[i], own_share);
  }
}

/// At most kMostRanges of the shard's ranges.
template <typename Rule>
void update_ranges(const Context& context, const Replicas& replicas, const Rule& rule, bool aligned,
                   std::span<const ParameterRange> some, double* squared_norm) {
  const Ranges ranges = ranges_of(some);
  SquaredNorm norm{nullptr, context.counters, squared_norm};
  if (norm.result != nullptr) {
    const auto bytes = static_cast<std::size_t>(ranges.chunks) * sizeof(double);
    norm.partials = static_cast<double*>(context.scratch(bytes));
  }
  const unsigned blocks = blocks_for(ranges.chunks, 1, std::int64_t{8} * context.multiprocessors);
  launch(aligned ? optimizer_kernel<kWidest, Rule> : optimizer_kernel<1, Rule>, blocks, kThreads,
         context.stream, replicas, rule, ranges, norm);
}

/// As the kernels take it; `aligned`: whether elements can be taken in packs.
Replicas replicas_of(const OptimizerShard& shard, bool& aligned) {
  Replicas replicas{};
  std::copy(shard.state.begin(), shard.state.end(), replicas.state);
  std::copy(shard.grads.begin(), shard.grads.end(), replicas.grads);
  std::copy(shard.weights.begin(), shard.weights.end(), replicas.weights);
  std::copy(shard.losses.begin(), shard.losses.end(), replicas.losses);
  replicas.parts = static_cast<int>(shard.grads.size());
  replicas.ranks = static_cast<int>(shard.weights.size());
  replicas.loss_count = static_cast<int>(shard.losses.size());
  replicas.lr = shard.lr;
  replicas.grad_scale = shard.grad_scale;
  replicas.clip = shard.clip;
  replicas.most = shard.most;
  replicas.updates = shard.updates;
  const auto fits = [](const float* memory) { return is_aligned(memory, 16); };
  aligned = std::all_of(shard.state.begin(), shard.state.end(), fits) &&
            std::all_of(shard.grads.begin(), shard.grads.end(), fits) &&
            std::all_of(shard.weights.begin(), shard.weights.end(), fits);
  return replicas;
}

void check_ranks(const OptimizerShard& shard) {
  LOCKSTEP_CHECK(shard.weights.size() <= std::size_t{kMaxRanks}, "optimizer_update: at most ",
                 kMaxRanks, " ranks, got ", shard.weights.size());
  LOCKSTEP_CHECK(shard.losses.size() <= std::size_t{kMaxRanks}, "optimizer_update: at most ",
                 kMaxRanks, " losses, got ", shard.losses.size());
}

void check_addends(const OptimizerShard& shard) {
  LOCKSTEP_CHECK(shard.grads.size() <= std::size_t{kMaxRanks}, "optimizer_update: at most ",
                 kMaxRanks, " ranks, got ", shard.grads.size());
}

/// Calls `use` for the shard's ranges, as many at a time as a launch takes.
template <typename Use>
void for_some_ranges(const OptimizerShard& shard, const Use& use) {
  for (std::size_t done = 0; done < shard.ranges.size(); done += kMostRanges) {
    const std::size_t count = std::min<std::size_t>(kMostRanges, shard.ranges.size() - done);
    use(shard.ranges.subspan(done, count));
  }
}

/// Gradients are added one after another.
void update_in_order(const Context& context, const OptimizerShard& shard) {
  check_addends(shard);
  bool aligned = false;
  const Replicas replicas = replicas_of(shard, aligned);
  for_some_ranges(shard, [&](std::span<const ParameterRange> some) {
    std::visit(
        [&](const auto& rule) {
          update_ranges(context, replicas, rule, aligned, some, shard.squared_norm);
        },
        shard.optimizer);
    if (shard.block_squares == nullptr) return;
    add_block_squares(context, replicas, some, shard.block_squares);
  });
}

/// The gradients' sum in the order of the joins, up to the last range's end; a single gradient is
/// its own.
const float* sum_in_order_of_joins(const Context& context, const OptimizerShard& shard) {
  if (shard.grads.size() == 1) return shard.grads[0];
  const int most = *most_waiting_sums(shard.joins, shard.grads.size());
  const WaitingSums sums(context, most, shard.ranges.back().end);
  place_parts(
      shard.grads.size(), shard.joins,
      [&](std::size_t part, std::size_t sum, bool first) {
        sums.take(static_cast<int>(sum), shard.grads[part], first);
      },
      [&](std::size_t sum) { sums.join(static_cast<int>(sum)); });
  return sums.at(0);
}

}  // namespace

void GpuOptimizer::optimizer_update(const OptimizerShard& shard) {
  check_optimizer_update(shard);
  check_parts(context_, "optimizer_update", shard.joins.empty() && shard.block_squares == nullptr);
  const Context& context = context_.entered();
  check_ranks(shard);
  if (shard.joins.empty() && shard.block_squares == nullptr) {
    return update_in_order(context, shard);
  }
  const bool any = !shard.ranges.empty();
  const float* sum = any ? sum_in_order_of_joins(context, shard) : shard.grads[0];
  OptimizerShard summed = shard;
  summed.grads = {&sum, 1};
  update_in_order(context, summed);
}

void GpuOptimizer::gradient_squares(const OptimizerShard& shard, double* squares) {
  check_gradient_squares(shard, squares);
  check_parts(context_, "gradient_squares", shard.joins.empty());
  const Context& context = context_.entered();
  check_ranks(shard);
  if (shard.ranges.empty()) return;
  const std::int64_t blocks = (shard.ranges.back().end + kNormBlock - 1) / kNormBlock;
  const auto bytes = blocks * static_cast<std::int64_t>(sizeof(double));
  fill(context, Tensor(squares, Shape{1, bytes}, DType::kUInt8), 0);
  OptimizerShard summed = shard;
  const float* sum = nullptr;
  if (!shard.joins.empty()) {
    sum = sum_in_order_of_joins(context, shard);
    summed.grads = {&sum, 1};
  }
  check_addends(summed);
  bool aligned = false;
  const Replicas replicas = replicas_of(summed, aligned);
  for_some_ranges(summed, [&](std::span<const ParameterRange> some) {
    add_block_squares(context, replicas, some, squares);
  });
}

void GpuOptimizer::average_weights(const WeightAverage& average) {
  check_operands(average);
  LOCKSTEP_CHECK(average.losses.size() <= std::size_t{kMaxRanks}, "average_weights: at most ",
                 kMaxRanks, " losses, got ", average.losses.size());
  const Context& context = context_.entered();
  if (average.elements == 0) return;
  RanksLosses losses{};
  std::copy(average.losses.begin(), average.losses.end(), losses.losses);
  losses.loss_count = static_cast<int>(average.losses.size());
  const unsigned blocks =
      blocks_for(average.elements, kThreads, std::int64_t{8} * context.multiprocessors);
  launch(average_kernel, blocks, kThreads, context.stream, losses, average.weights, average.average,
         average.elements, average.share, average.updates);
}

void GpuOptimizer::clip_factor(const ClipFactor& clip) {
  check_operands(clip);
  LOCKSTEP_CHECK(clip.squares.size() <= std::size_t{kMaxRanks}, "clip_factor: at most ", kMaxRanks,
                 " ranks, got ", clip.squares.size());
  RanksSquares squares{};
  for (const GradientSquares& rank : clip.squares) {
    if (rank.blocks != nullptr) squares.ranks[squares.count++] = rank;
  }
  launch(clip_factor_kernel, 1, kThreads, context_.entered().stream, squares, clip.max_norm,
         clip.factor);
}

}  // namespace lockstep::gpu
