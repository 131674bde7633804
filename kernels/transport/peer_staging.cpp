#include "kernels/transport/peer_staging.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/device/check_cuda.h"
#include "kernels/device/device.h"
#include "kernels/operations/launchers.h"

namespace lockstep::gpu {
namespace {

/// Copies begin at multiples of this, so that they are taken in packs as what they are copies of
/// is; bits of the squared norm depend on it.
constexpr std::size_t kPieceAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

/// Of what is copied: the beginning of the block (kNormBlock) that the first range begins in.
std::int64_t begin_of(const OptimizerShard& shard) {
  return shard.ranges.front().begin / kNormBlock * kNormBlock;
}

/// From there to the end of the last range, gaps included, of one rank's gradients or weights.
std::size_t bytes_of(const OptimizerShard& shard) {
  return static_cast<std::size_t>(shard.ranges.back().end - begin_of(shard)) * sizeof(float);
}

}  // namespace

const PeerStaging::Place& PeerStaging::place_of(const void* address) {
  const auto known = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& place) { return place.address == address; });
  if (known != places_.end()) return *known;
  cudaPointerAttributes attributes;
  check_cuda(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
  LOCKSTEP_CHECK(attributes.type == cudaMemoryTypeDevice, "cuda:", ordinal_,
                 ": a shard lies in memory of no GPU");
  const std::array<int, 2> pair{ordinal_, attributes.device};
  const bool reachable = PeerAccess(pair).between(ordinal_, attributes.device);
  return places_.emplace_back(Place{address, reachable});
}

bool PeerStaging::reaches(const OptimizerShard& shard) {
  if (shard.ranges.empty()) return true;
  const auto reachable = [this](const void* address) { return place_of(address).reachable; };
  return std::all_of(shard.grads.begin(), shard.grads.end(), reachable) &&
         std::all_of(shard.weights.begin(), shard.weights.end(), reachable) &&
         std::all_of(shard.losses.begin(), shard.losses.end(), reachable);
}

const std::byte* PeerStaging::within_reach(const Place& place, const void* from, std::size_t bytes,
                                           Stream stream, std::byte** next) const {
  if (place.reachable) return static_cast<const std::byte*>(from);
  std::byte* copy = *next;
  *next += aligned(bytes);
  check_cuda(cudaMemcpyAsync(copy, from, bytes, cudaMemcpyDefault, stream),
             "cudaMemcpyAsync from a peer");
  return copy;
}

PeerStaging::Staged PeerStaging::stage(const OptimizerShard& shard, Stream stream,
                                       const std::function<void*(std::size_t bytes)>& scratch) {
  const std::int64_t begin = begin_of(shard);
  const std::size_t bytes = bytes_of(shard);
  auto* next = static_cast<std::byte*>(
      scratch(shard.losses.size() * aligned(sizeof(double)) +
              (shard.grads.size() + shard.weights.size()) * aligned(bytes)));
  Staged staged{shard, {}, {}, {}, {}};
  for (const ParameterRange& range : shard.ranges) {
    staged.ranges.push_back(range);
    staged.ranges.back().begin -= begin;
    staged.ranges.back().end -= begin;
  }
  for (const double* loss : shard.losses) {
    const auto* near = within_reach(place_of(loss), loss, sizeof(double), stream, &next);
    staged.losses.push_back(reinterpret_cast<const double*>(near));
  }
  const auto part = [&](const float* all) {
    const auto* near = within_reach(place_of(all), all + begin, bytes, stream, &next);
    return reinterpret_cast<const float*>(near);
  };
  for (const float* grads : shard.grads) staged.grads.push_back(part(grads));
  for (const float* weights : shard.weights) {
    staged.weights.push_back(const_cast<float*>(part(weights)));
  }
  staged.shard.grads = staged.grads;
  staged.shard.weights = staged.weights;
  staged.shard.losses = staged.losses;
  if (shard.block_squares != nullptr) staged.shard.block_squares += begin / kNormBlock;
  for (float*& slot : staged.shard.state) {
    if (slot != nullptr) slot += begin;
  }
  staged.shard.ranges = staged.ranges;
  return staged;
}

std::span<const double* const> PeerStaging::stage_numbers(
    std::span<const double* const> numbers, Stream stream,
    const std::function<void*(std::size_t bytes)>& scratch) {
  auto* next = static_cast<std::byte*>(scratch(numbers.size() * aligned(sizeof(double))));
  numbers_.clear();
  for (const double* number : numbers) {
    const auto* near = within_reach(place_of(number), number, sizeof(double), stream, &next);
    numbers_.push_back(reinterpret_cast<const double*>(near));
  }
  return numbers_;
}

void PeerStaging::write_back(const OptimizerShard& shard, const Staged& staged, Stream stream) {
  const std::int64_t begin = begin_of(shard);
  const std::size_t bytes = bytes_of(shard);
  for (std::size_t rank = 0; rank < shard.weights.size(); ++rank) {
    if (place_of(shard.weights[rank]).reachable) continue;
    check_cuda(cudaMemcpyAsync(shard.weights[rank] + begin, staged.weights[rank], bytes,
                               cudaMemcpyDefault, stream),
               "cudaMemcpyAsync to a peer");
  }
}

PeerOptimizer::PeerOptimizer(int ordinal, const Context& context,
                             std::function<void*(std::size_t bytes)> scratch)
    : GpuOptimizer(context), peers_(ordinal), scratch_(std::move(scratch)) {}

void PeerOptimizer::optimizer_update(const OptimizerShard& shard) {
  check_optimizer_update(shard);
  if (peers_.reaches(shard)) return GpuOptimizer::optimizer_update(shard);
  const Stream stream = context().entered().stream;
  PeerStaging::Staged staged = peers_.stage(shard, stream, scratch_);
  GpuOptimizer::optimizer_update(staged.shard);
  peers_.write_back(shard, staged, stream);
}

// Copies of the weights come along, which are not looked at.
void PeerOptimizer::gradient_squares(const OptimizerShard& shard, double* squares) {
  check_gradient_squares(shard, squares);
  if (peers_.reaches(shard)) return GpuOptimizer::gradient_squares(shard, squares);
  const Context& own = context().entered();
  const PeerStaging::Staged staged = peers_.stage(shard, own.stream, scratch_);
  const std::int64_t before = shard.ranges.front().begin / kNormBlock;
  const std::int64_t bytes = before * static_cast<std::int64_t>(sizeof(double));
  if (bytes > 0) fill(own, Tensor(squares, Shape{1, bytes}, DType::kUInt8), 0);
  GpuOptimizer::gradient_squares(staged.shard, squares + before);
}

void PeerOptimizer::average_weights(const WeightAverage& average) {
  check_operands(average);
  WeightAverage near = average;
  near.losses = peers_.stage_numbers(average.losses, context().entered().stream, scratch_);
  GpuOptimizer::average_weights(near);
}

void PeerOptimizer::update_loss_scale(const LossScaleUpdate& update) {
  check_operands(update);
  const std::span<const double* const> guards =
      peers_.stage_numbers(update.guards, context().entered().stream, scratch_);
  GpuOptimizer::update_loss_scale({guards, update.state, update.growth_interval});
}

}  // namespace lockstep::gpu
