#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"
#include "backend/sum_parts.h"

namespace lockstep {
namespace {

constexpr std::int64_t kChunk = kNormBlock;

/// The new weights of elements [begin, begin + count) of the range, whose state is changed in
/// place.
template <typename Element>
void update_elements(const OptimizerShard& shard, const Element element,
                     const ParameterRange& range, std::int64_t begin, std::int64_t count,
                     const float* gradient, float* updated) {
  const float* weights = shard.weights[0] + begin;
  float* slots[Element::kSlots];
  for (int s = 0; s < Element::kSlots; ++s) {
    slots[s] = shard.state[static_cast<std::size_t>(s)] + begin;
  }
  const float lr = shard.lr.get() * range.lr_scale;
  const float weight_decay = range.weight_decay;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    float state[Element::kSlots];
    for (int s = 0; s < Element::kSlots; ++s) state[s] = slots[s][i];
    updated[i] = element(weights[i], gradient[i], state, lr, weight_decay);
    for (int s = 0; s < Element::kSlots; ++s) slots[s][i] = state[s];
  }
}

/// g of elements [begin, begin + count), in sums[0]; returns the sum of its squares.
double gradient_chunk(const OptimizerShard& shard, std::int64_t begin, std::int64_t count,
                      float (&sums)[kMaxWaitingSums][kChunk]) {
  sum_parts(shard.grads, shard.joins, begin, count, sums);
  float* gradient = sums[0];
  const float grad_scale = shard.grad_scale.get();
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) gradient[i] *= grad_scale;
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto wide = static_cast<double>(gradient[i]);
    squares += wide * wide;  // the product is exact
  }
  return squares;
}

void clip_chunk(const OptimizerShard& shard, float* gradient, std::int64_t count) {
  const float factor = shard.clip.get();
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    gradient[i] = clipped(gradient[i], factor, shard.most);
  }
}

/// Returns the sum of the gradient's squares.
template <typename Element>
double update_chunk(const OptimizerShard& shard, const Element& element,
                    const ParameterRange& range, std::int64_t begin, std::int64_t count) {
  float sums[kMaxWaitingSums][kChunk];
  float updated[kChunk];
  const double squares = gradient_chunk(shard, begin, count, sums);
  clip_chunk(shard, sums[0], count);
  update_elements(shard, element, range, begin, count, sums[0], updated);
  for (float* replica : shard.weights) std::copy_n(updated, count, replica + begin);
  return squares;
}

bool all_finite(std::span<const double* const> losses) {
  return std::all_of(losses.begin(), losses.end(),
                     [](const double* loss) { return std::isfinite(*loss); });
}

void check_waiting(const char* operation, const OptimizerShard& shard) {
  const int waiting = *most_waiting_sums(shard.joins, shard.grads.size());
  LOCKSTEP_CHECK(waiting <= kMaxWaitingSums, operation, ": ", waiting,
                 " sums wait for others, expected at most ", kMaxWaitingSums);
}

/// Elements of a block that are in a range.
struct Piece {
  Piece(const ParameterRange& range, std::int64_t block)
      : begin(std::max(range.begin, block * kChunk)),
        count(std::min(range.end, (block + 1) * kChunk) - begin) {}
  std::int64_t begin, count;
};

}  // namespace

void CpuOptimizer::gradient_squares(const OptimizerShard& shard, double* squares) {
  check_gradient_squares(shard, squares);
  check_waiting("gradient_squares", shard);
  if (shard.ranges.empty()) return;
  const auto parts = static_cast<std::int64_t>(shard.grads.size());
  std::fill_n(squares, (shard.ranges.back().end + kChunk - 1) / kChunk, 0.0);
  for (const ParameterRange& range : shard.ranges) {
    const std::int64_t before = range.begin / kChunk;
    const std::int64_t chunks = (range.end + kChunk - 1) / kChunk - before;
    parallel_for(chunks, 2 * parts * kChunk, cpu_.threads(),
                 [&](std::int64_t first, std::int64_t last) {
                   float sums[kMaxWaitingSums][kChunk];
                   for (std::int64_t block = before + first; block < before + last; ++block) {
                     const Piece piece(range, block);
                     squares[block] += gradient_chunk(shard, piece.begin, piece.count, sums);
                   }
                 });
  }
}

void CpuOptimizer::clip_factor(const ClipFactor& clip) {
  check_operands(clip);
  double squares = 0;
  for (const GradientSquares& rank : clip.squares) {
    if (rank.blocks == nullptr) continue;
    squares = std::accumulate(rank.blocks, rank.blocks + rank.count, squares);
  }
  *clip.factor = factor_for_norm(std::sqrt(squares), clip.max_norm);
}

void CpuOptimizer::average_weights(const WeightAverage& average) {
  check_operands(average);
  if (!all_finite(average.losses)) return;
  const float share = average.updates.get() == 1 ? 1.0F : average.share;
  parallel_for(average.elements, 1, cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      average.average[i] = moved_average(average.average[i], average.weights[i], share);
    }
  });
}

void CpuOptimizer::optimizer_update(const OptimizerShard& shard) {
  check_optimizer_update(shard);
  check_waiting("optimizer_update", shard);
  if (!all_finite(shard.losses)) return;
  std::visit(
      [&](const auto& optimizer) {
        const typename std::decay_t<decltype(optimizer)>::Element element(optimizer,
                                                                          shard.updates.get());
        for (const ParameterRange& range : shard.ranges) update_range(shard, element, range);
      },
      shard.optimizer);
}

template <typename Element>
void CpuOptimizer::update_range(const OptimizerShard& shard, const Element& element,
                                const ParameterRange& range) {
  const auto parts = static_cast<std::int64_t>(shard.grads.size());
  const std::int64_t before = range.begin / kChunk;
  const std::int64_t chunks = (range.end + kChunk - 1) / kChunk - before;
  auto* squares =
      static_cast<double*>(cpu_.scratch(static_cast<std::size_t>(chunks) * sizeof(double)));
  parallel_for(chunks, 2 * parts * kChunk, cpu_.threads(),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t chunk = first; chunk < last; ++chunk) {
                   const Piece piece(range, before + chunk);
                   squares[chunk] = update_chunk(shard, element, range, piece.begin, piece.count);
                   if (shard.block_squares != nullptr)
                     shard.block_squares[before + chunk] += squares[chunk];
                 }
               });
  if (shard.squared_norm == nullptr) return;
  *shard.squared_norm += std::accumulate(squares, squares + chunks, 0.0);
}

}  // namespace lockstep
