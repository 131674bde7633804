// SGD over replicas. The update is one pass: a thread takes a pack of elements, adds up the ranks'
// gradients in rank order, updates velocity and weight in registers and writes the weight to every
// rank. What of a pack lies outside of the shard is left out, one by one.
//
// The gradient's squares are added up on the way. A chunk of elements has one partial sum, whatever
// the grid; the last block adds them up.

#include <algorithm>
#include <cmath>

#include "kernels/operations/sgd.h"
#include "kernels/primitives/launch.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/pack.h"
#include "lockstep/backend/formulas.h"

namespace lockstep::gpu {
namespace {

constexpr int kWidest = kPackWidth<float>;

struct Replicas {
  const float* grads[kMaxRanks];
  float* weights[kMaxRanks];
  const double* losses[kMaxRanks];
  float* velocity;
  int ranks;
  int loss_count;
  DeviceScalar<float> lr = 0.0F;
  float momentum, weight_decay;
};

constexpr unsigned kThreads = 256;
constexpr int kRounds = 2;  // packs that a thread takes of a chunk
constexpr int kChunk = kRounds * static_cast<int>(kThreads) * kWidest;

/// Elements [begin, end) in chunks from `first` on, which is a multiple of a pack.
struct Chunks {
  std::int64_t begin, end, first, count;
};

Chunks chunks_of(std::int64_t begin, std::int64_t end) {
  const std::int64_t first = begin / kWidest * kWidest;
  return {begin, end, first, (end - first + kChunk - 1) / kChunk};
}

/// Where the gradient's squares are added up.
struct SquaredNorm {
  double* partials;  // [chunks]
  unsigned* counter;
  double* result;  // null: not wanted
};

__device__ bool losses_are_finite(const Replicas& replicas) {
  bool finite = true;
  for (int rank = 0; rank < replicas.loss_count; ++rank) {
    finite = finite && std::isfinite(*replicas.losses[rank]);
  }
  return finite;
}

/// Elements [at, at + kWidth); returns the sum of their gradients' squares.
template <int kWidth>
__device__ double update(const Replicas& replicas, float lr, std::int64_t at) {
  float gradient[kWidth] = {};
  for (int rank = 0; rank < replicas.ranks; ++rank) {
    const auto part = load_pack<kWidth>(replicas.grads[rank] + at);
    for (int k = 0; k < kWidth; ++k) gradient[k] += part[k];
  }
  const auto weight = load_pack<kWidth>(replicas.weights[0] + at);
  const auto velocity = load_pack<kWidth>(replicas.velocity + at);
  float new_weight[kWidth], new_velocity[kWidth];
  double squares = 0;
  for (int k = 0; k < kWidth; ++k) {
    new_velocity[k] = velocity[k];
    new_weight[k] = sgd_element(weight[k], gradient[k], new_velocity[k], lr, replicas.momentum,
                                replicas.weight_decay);
    const auto wide = static_cast<double>(gradient[k]);
    squares += wide * wide;  // the product is exact
  }
  store_rounded(replicas.velocity + at, new_velocity);
  for (int rank = 0; rank < replicas.ranks; ++rank) {
    store_rounded(replicas.weights[rank] + at, new_weight);
  }
  return squares;
}

/// As update(), of those elements that are in the shard.
template <int kWidth>
__device__ double update_within(const Replicas& replicas, float lr, const Chunks& chunks,
                                std::int64_t at) {
  if (at >= chunks.begin && at + kWidth <= chunks.end) return update<kWidth>(replicas, lr, at);
  double squares = 0;
  for (int k = 0; k < kWidth; ++k) {
    if (at + k >= chunks.begin && at + k < chunks.end) squares += update<1>(replicas, lr, at + k);
  }
  return squares;
}

/// kWidth: of the packs, 1 where memory is not aligned for more.
template <int kWidth>
__global__ void sgd_kernel(Replicas replicas, Chunks chunks, SquaredNorm norm) {
  if (!losses_are_finite(replicas)) return;
  const float lr = replicas.lr.get();
  for (std::int64_t chunk = blockIdx.x; chunk < chunks.count; chunk += gridDim.x) {
    const std::int64_t first = chunks.first + chunk * kChunk;
    double squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < kChunk / kWidth; i += kThreads) {
      squares += update_within<kWidth>(replicas, lr, chunks, first + i * kWidth);
    }
    if (norm.result == nullptr) continue;
    const double sum = block_sum(squares);
    if (threadIdx.x == 0) norm.partials[chunk] = sum;
  }
  if (norm.result == nullptr) return;
  add_partials(norm.partials, chunks.count, norm.counter, 1, norm.result);
}

}  // namespace

void sgd_update(const Context& context, const SgdShard& shard) {
  LOCKSTEP_CHECK(!shard.grads.empty() && shard.grads.size() == shard.weights.size(),
                 "sgd_update: expected gradients and weights of the same ranks, got ",
                 shard.grads.size(), " and ", shard.weights.size());
  LOCKSTEP_CHECK(shard.grads.size() <= std::size_t{kMaxRanks}, "sgd_update: at most ", kMaxRanks,
                 " ranks, got ", shard.grads.size());
  LOCKSTEP_CHECK(shard.losses.size() <= std::size_t{kMaxRanks}, "sgd_update: at most ", kMaxRanks,
                 " losses, got ", shard.losses.size());
  if (shard.begin == shard.end) return;
  Replicas replicas{};
  replicas.velocity = shard.velocity;
  replicas.ranks = static_cast<int>(shard.grads.size());
  replicas.lr = shard.lr;
  replicas.loss_count = static_cast<int>(shard.losses.size());
  std::copy(shard.losses.begin(), shard.losses.end(), replicas.losses);
  replicas.momentum = shard.momentum;
  replicas.weight_decay = shard.weight_decay;
  bool aligned = is_aligned(shard.velocity, 16);
  for (std::size_t rank = 0; rank < shard.grads.size(); ++rank) {
    replicas.grads[rank] = shard.grads[rank];
    replicas.weights[rank] = shard.weights[rank];
    aligned = aligned && is_aligned(shard.grads[rank], 16) && is_aligned(shard.weights[rank], 16);
  }
  const Chunks chunks = chunks_of(shard.begin, shard.end);
  SquaredNorm norm{nullptr, context.counters, shard.squared_norm};
  if (norm.result != nullptr) {
    const auto bytes = static_cast<std::size_t>(chunks.count) * sizeof(double);
    norm.partials = static_cast<double*>(context.scratch(bytes));
  }
  const unsigned blocks = blocks_for(chunks.count, 1, std::int64_t{8} * context.multiprocessors);
  launch(aligned ? sgd_kernel<kWidest> : sgd_kernel<1>, blocks, kThreads, context.stream, replicas,
         chunks, norm);
}

}  // namespace lockstep::gpu
