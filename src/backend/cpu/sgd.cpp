#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "lockstep/backend/formulas.h"

namespace lockstep {
namespace {

// Small enough for the first cache with all ranks' parts in flight, long enough for vector loops.
constexpr std::int64_t kChunk = 512;

void update_chunk(const SgdShard& shard, float lr, std::int64_t begin, std::int64_t count) {
  float gradient[kChunk] = {};
  float updated[kChunk];
  for (const float* grads : shard.grads) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) gradient[i] += grads[begin + i];
  }
  const float* weights = shard.weights[0] + begin;
  float* velocity = shard.velocity + begin;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    updated[i] =
        sgd_element(weights[i], gradient[i], velocity[i], lr, shard.momentum, shard.weight_decay);
  }
  for (float* replica : shard.weights) std::copy_n(updated, count, replica + begin);
}

}  // namespace

void CpuBackend::sgd_update(const SgdShard& shard) {
  LOCKSTEP_CHECK(!shard.grads.empty() && shard.grads.size() == shard.weights.size(),
                 "sgd_update: expected gradients and weights of the same ranks, got ",
                 shard.grads.size(), " and ", shard.weights.size());
  const bool finite = std::all_of(shard.losses.begin(), shard.losses.end(),
                                  [](const double* loss) { return std::isfinite(*loss); });
  if (!finite) return;
  const float lr = shard.lr.get();
  const auto ranks = static_cast<std::int64_t>(shard.grads.size());
  parallel_for(shard.end - shard.begin, 2 * ranks, threads_,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; i += kChunk) {
                   update_chunk(shard, lr, shard.begin + i, std::min(kChunk, last - i));
                 }
               });
}

}  // namespace lockstep
