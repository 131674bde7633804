// SGD over replicas, and sums of squares. The update is one pass: a thread takes a pack of
// elements, adds up the ranks' gradients in rank order, updates velocity and weight in registers
// and writes the weight to every rank. Elements before the first and behind the last whole pack of
// the shard are taken one by one. A sum of squares has one partial sum per chunk of elements,
// whatever the grid; the last block adds them up.

#include "kernels/operations/sgd.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/ordered_sum.h"
#include "kernels/primitives/pack.h"
#include "lockstep/backend/formulas.h"

namespace lockstep::gpu {
namespace {

constexpr int kWidest = kPackWidth<float>;

struct Replicas {
  const float* grads[kMaxRanks];
  float* weights[kMaxRanks];
  float* velocity;
  int ranks;
  float lr, momentum, weight_decay;
};

/// Elements [begin, end): those of [first, last) in packs.
struct Parts {
  std::int64_t begin, first, last, end;
};

template <int kWidth>
__device__ void update(const Replicas& replicas, std::int64_t at) {
  float gradient[kWidth] = {};
  for (int rank = 0; rank < replicas.ranks; ++rank) {
    const auto part = load_pack<kWidth>(replicas.grads[rank] + at);
    for (int k = 0; k < kWidth; ++k) gradient[k] += part[k];
  }
  const auto weight = load_pack<kWidth>(replicas.weights[0] + at);
  const auto velocity = load_pack<kWidth>(replicas.velocity + at);
  float new_weight[kWidth], new_velocity[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    new_velocity[k] = velocity[k];
    new_weight[k] = sgd_element(weight[k], gradient[k], new_velocity[k], replicas.lr,
                                replicas.momentum, replicas.weight_decay);
  }
  store_rounded(replicas.velocity + at, new_velocity);
  for (int rank = 0; rank < replicas.ranks; ++rank) {
    store_rounded(replicas.weights[rank] + at, new_weight);
  }
}

__global__ void sgd_kernel(Replicas replicas, Parts parts) {
  const std::int64_t packs = (parts.last - parts.first) / kWidest;
  const std::int64_t before = parts.first - parts.begin;
  const std::int64_t singles = before + (parts.end - parts.last);
  for (std::int64_t i = first_item(); i < packs + singles; i += item_stride()) {
    if (i < packs) {
      update<kWidest>(replicas, parts.first + i * kWidest);
      continue;
    }
    const std::int64_t single = i - packs;
    update<1>(replicas, single < before ? parts.begin + single : parts.last + (single - before));
  }
}

constexpr unsigned kSumThreads = 256;
constexpr std::int64_t kRounds = 8;  // packs that a thread takes of a chunk
constexpr std::int64_t kChunk = kRounds * kSumThreads * kWidest;

/// A thread takes the same elements with and without packs.
template <bool kPacks>
__global__ void sum_of_squares_kernel(const float* data, std::int64_t elements, double* partials,
                                      unsigned* counter, double* result) {
  const std::int64_t chunks = (elements + kChunk - 1) / kChunk;
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    double mine = 0;
    for (std::int64_t round = 0; round < kRounds; ++round) {
      const std::int64_t at = chunk * kChunk + (round * kSumThreads + threadIdx.x) * kWidest;
      const std::int64_t left = elements - at;
      const int count = left < kWidest ? static_cast<int>(left) : kWidest;
      const auto values = kPacks && count == kWidest ? load_elements<true>(data + at, count)
                                                     : load_elements<false>(data + at, count);
      for (int k = 0; k < kWidest; ++k) {
        const auto value = static_cast<double>(values[k]);
        mine += value * value;  // the product is exact
      }
    }
    const double sum = block_sum(mine);
    if (threadIdx.x == 0) partials[chunk] = sum;
  }
  add_partials(partials, chunks, counter, 1, result);
}

}  // namespace

void sgd_update(const Context& context, const SgdShard& shard) {
  LOCKSTEP_CHECK(!shard.grads.empty() && shard.grads.size() == shard.weights.size(),
                 "sgd_update: expected gradients and weights of the same ranks, got ",
                 shard.grads.size(), " and ", shard.weights.size());
  LOCKSTEP_CHECK(shard.grads.size() <= std::size_t{kMaxRanks}, "sgd_update: at most ", kMaxRanks,
                 " ranks, got ", shard.grads.size());
  Replicas replicas{};
  replicas.velocity = shard.velocity;
  replicas.ranks = static_cast<int>(shard.grads.size());
  replicas.lr = shard.lr;
  replicas.momentum = shard.momentum;
  replicas.weight_decay = shard.weight_decay;
  bool aligned = is_aligned(shard.velocity, 16);
  for (std::size_t rank = 0; rank < shard.grads.size(); ++rank) {
    replicas.grads[rank] = shard.grads[rank];
    replicas.weights[rank] = shard.weights[rank];
    aligned = aligned && is_aligned(shard.grads[rank], 16) && is_aligned(shard.weights[rank], 16);
  }
  Parts parts{shard.begin, shard.end, shard.end, shard.end};
  const std::int64_t first = (shard.begin + kWidest - 1) / kWidest * kWidest;
  const std::int64_t last = shard.end / kWidest * kWidest;
  if (aligned && first < last) parts = {shard.begin, first, last, shard.end};
  const std::int64_t packs = (parts.last - parts.first) / kWidest;
  const std::int64_t items = packs + (parts.first - parts.begin) + (parts.end - parts.last);
  launch_loop(context, items, sgd_kernel, replicas, parts);
}

void sum_of_squares(const Context& context, const float* data, std::int64_t elements,
                    double* result) {
  if (elements == 0) return;
  const std::int64_t chunks = (elements + kChunk - 1) / kChunk;
  auto* partials =
      static_cast<double*>(context.scratch(static_cast<std::size_t>(chunks) * sizeof(double)));
  const unsigned blocks = blocks_for(chunks, 1, std::int64_t{8} * context.multiprocessors);
  launch(is_aligned(data, 16) ? sum_of_squares_kernel<true> : sum_of_squares_kernel<false>, blocks,
         kSumThreads, context.stream, data, elements, partials, context.counters, result);
}

}  // namespace lockstep::gpu
