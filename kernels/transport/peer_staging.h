#pragma once
// The optimizer step reads every replica's gradients and writes every replica's weights in place.
// On machines whose GPUs cannot reach each other's memory, those of the others are copied here
// before and back afterwards; the update sees local memory only, and computes the same bits. The
// copies can be captured: cudaMemcpyDefault, where it is not known that cudaMemcpyPeerAsync can.

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/operations/gpu_operations.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Used by a replica's thread.
class PeerStaging {
 public:
  explicit PeerStaging(int ordinal) : ordinal_(ordinal) {}

  /// Whether this GPU reaches all memory of the shard.
  bool reaches(const OptimizerShard& shard);

  /// A shard whose memory is all within reach: the original's elements from the block (kNormBlock)
  /// of its first range on, to the end of its last one, begin at 0.
  struct Staged {
    OptimizerShard shard;
    std::vector<ParameterRange> ranges;
    std::vector<const float*> grads;  // [part]
    std::vector<float*> weights;      // [rank]
    std::vector<const double*> losses;
  };
  /// Copies what is out of reach into scratch memory.
  Staged stage(const OptimizerShard& shard, Stream stream,
               const std::function<void*(std::size_t bytes)>& scratch);
  /// Numbers of all ranks, within reach: where they lie, or copies in scratch memory. Valid until
  /// the next call.
  std::span<const double* const> stage_numbers(
      std::span<const double* const> numbers, Stream stream,
      const std::function<void*(std::size_t bytes)>& scratch);
  /// Copies the new weights of `staged` to where the original keeps them.
  void write_back(const OptimizerShard& shard, const Staged& staged, Stream stream);

 private:
  /// Memory by its first address, as parameters have, and whether it is within reach.
  struct Place {
    const void* address = nullptr;
    bool reachable = true;
  };
  const Place& place_of(const void* address);
  /// `bytes` at `from` as memory within reach: itself, or a copy at `*next`, which moves on.
  const std::byte* within_reach(const Place& place, const void* from, std::size_t bytes,
                                Stream stream, std::byte** next) const;

  const int ordinal_;
  std::vector<Place> places_;  // a few per replica, and one for each of its parts of the gradient
  std::vector<const double*> numbers_;
};

/// The optimizer of a GPU, also where a peer's memory cannot be reached from it.
class PeerOptimizer final : public GpuOptimizer {
 public:
  /// `scratch`: at least so many bytes of device memory, which no kernel of the operations asks
  /// for.
  PeerOptimizer(int ordinal, const Context& context,
                std::function<void*(std::size_t bytes)> scratch);

  void optimizer_update(const OptimizerShard& shard) override;
  void gradient_squares(const OptimizerShard& shard, double* squares) override;
  void average_weights(const WeightAverage& average) override;
  void update_loss_scale(const LossScaleUpdate& update) override;

 private:
  PeerStaging peers_;
  const std::function<void*(std::size_t bytes)> scratch_;
};

}  // namespace lockstep::gpu
