#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/sum_parts.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"

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

/// Returns the sum of the gradient's squares.
template <typename Element>
double update_chunk(const OptimizerShard& shard, const Element& element,
                    const ParameterRange& range, std::int64_t begin, std::int64_t count) {
  float sums[kMaxWaitingSums][kChunk];
  float updated[kChunk];
  sum_parts(shard.grads, shard.joins, begin, count, sums);
  float* gradient = sums[0];
  const float grad_scale = shard.grad_scale.get();
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) gradient[i] *= grad_scale;
  update_elements(shard, element, range, begin, count, gradient, updated);
  for (float* replica : shard.weights) std::copy_n(updated, count, replica + begin);
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto wide = static_cast<double>(gradient[i]);
    squares += wide * wide;  // the product is exact
  }
  return squares;
}

}  // namespace

void CpuBackend::optimizer_update(const OptimizerShard& shard) {
  LOCKSTEP_CHECK(!shard.grads.empty() && !shard.weights.empty(),
                 "optimizer_update: expected gradients and weights, got ", shard.grads.size(),
                 " and ", shard.weights.size());
  const int waiting = check_joins(shard.joins, shard.grads.size());
  LOCKSTEP_CHECK(waiting <= kMaxWaitingSums, "optimizer_update: ", waiting,
                 " sums wait for others, expected at most ", kMaxWaitingSums);
  const bool finite = std::all_of(shard.losses.begin(), shard.losses.end(),
                                  [](const double* loss) { return std::isfinite(*loss); });
  if (!finite) return;
  std::visit(
      [&](const auto& optimizer) {
        const typename std::decay_t<decltype(optimizer)>::Element element(optimizer,
                                                                          shard.updates.get());
        for (const ParameterRange& range : shard.ranges) update_range(shard, element, range);
      },
      shard.optimizer);
}

template <typename Element>
void CpuBackend::update_range(const OptimizerShard& shard, const Element& element,
                              const ParameterRange& range) {
  const auto parts = static_cast<std::int64_t>(shard.grads.size());
  const std::int64_t before = range.begin / kChunk;
  const std::int64_t chunks = (range.end + kChunk - 1) / kChunk - before;
  auto* squares = static_cast<double*>(scratch(static_cast<std::size_t>(chunks) * sizeof(double)));
  parallel_for(chunks, 2 * parts * kChunk, threads_, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t begin = std::max(range.begin, (before + chunk) * kChunk);
      const std::int64_t end = std::min(range.end, (before + chunk + 1) * kChunk);
      squares[chunk] = update_chunk(shard, element, range, begin, end - begin);
      if (shard.block_squares != nullptr) shard.block_squares[before + chunk] += squares[chunk];
    }
  });
  if (shard.squared_norm == nullptr) return;
  *shard.squared_norm += std::accumulate(squares, squares + chunks, 0.0);
}

}  // namespace lockstep
