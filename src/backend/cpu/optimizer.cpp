#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"

namespace lockstep {
namespace {

// Of one partial sum of squares, too. Small enough for the first cache with all ranks' parts in
// flight, long enough for vector loops.
constexpr std::int64_t kChunk = 512;

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
  float gradient[kChunk] = {};
  float updated[kChunk];
  for (const float* grads : shard.grads) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) gradient[i] += grads[begin + i];
  }
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
  LOCKSTEP_CHECK(!shard.grads.empty() && shard.grads.size() == shard.weights.size(),
                 "optimizer_update: expected gradients and weights of the same ranks, got ",
                 shard.grads.size(), " and ", shard.weights.size());
  const bool finite = std::all_of(shard.losses.begin(), shard.losses.end(),
                                  [](const double* loss) { return std::isfinite(*loss); });
  if (!finite) return;
  std::visit(
      [&](const auto& rule) {
        const auto element = element_of(rule);
        for (const ParameterRange& range : shard.ranges) update_range(shard, element, range);
      },
      shard.rule);
}

template <typename Element>
void CpuBackend::update_range(const OptimizerShard& shard, const Element& element,
                              const ParameterRange& range) {
  const auto ranks = static_cast<std::int64_t>(shard.grads.size());
  const std::int64_t chunks = (range.end - range.begin + kChunk - 1) / kChunk;
  auto* squares = static_cast<double*>(scratch(static_cast<std::size_t>(chunks) * sizeof(double)));
  parallel_for(chunks, 2 * ranks * kChunk, threads_, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t begin = range.begin + chunk * kChunk;
      const std::int64_t count = std::min(kChunk, range.end - begin);
      squares[chunk] = update_chunk(shard, element, range, begin, count);
    }
  });
  if (shard.squared_norm == nullptr) return;
  *shard.squared_norm += std::accumulate(squares, squares + chunks, 0.0);
}

}  // namespace lockstep
