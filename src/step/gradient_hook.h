#pragma once
// What DataParallelOptions::on_gradients sees: between the sum over all ranks and the update, the
// gradients of all parameters lie together on the host, each in one piece. Ranks bring those that
// they own, processes give each other theirs, one thread of each process calls the hook, and the
// ranks take what it has left of those that they own.
//
// Without a hook nothing is copied, and no rank waits for another.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/parallel/options.h"
#include "lockstep/sync/sync_group.h"
#include "step/gradient_reducer.h"

namespace lockstep {

/// What the ranks of a process have in common. Outlives their ends.
class HookedGradients {
 public:
  /// `any`: the parameters of a replica. All outlive the object.
  HookedGradients(const DataParallelOptions& options, const GradientExchangeChoice& exchange,
                  SyncGroup& group, const ParameterStore& any);
  HookedGradients(const HookedGradients&) = delete;
  HookedGradients& operator=(const HookedGradients&) = delete;

  bool any() const { return barrier_ != nullptr; }
  /// [elements] of all parameters; none without a hook.
  std::span<float> values() { return values_; }
  /// When all ranks of this process have called it, the hook has been called.
  void meet(int rank);

 private:
  std::span<float> of_process(int process);
  void trade();

  SyncGroup& group_;
  const RankLayout& layout_;
  std::vector<float> values_;
  std::vector<NamedGradient> named_;
  std::vector<int> peers_;                            // processes that own other gradients
  std::vector<std::span<const std::byte>> messages_;  // [process]
  std::vector<Bytes> in_;                             // [process]
  Barrier<char, char>* barrier_ = nullptr;            // null: no hook
};

/// A rank's end. Owned by its WeightUpdate, used by the rank's thread.
class HookedShard {
 public:
  HookedShard(HookedGradients& all, const UpdateShare& share, std::int64_t elements,
              Backend& backend);

  /// Replaces the shard's gradients, which are reduced, by what the hook leaves of them, unless one
  /// of its losses is not finite. All ranks call it in a step, or none.
  void change(OptimizerShard& shard);

 private:
  bool all_finite(std::span<const double* const> losses) const;
  float scale_of(const DeviceScalar<float>& scale) const;
  void fetch(const float* part, std::vector<float>& to) const;
  void sum(std::span<const float* const> parts, std::span<const int> joins);

  HookedGradients& all_;
  Backend& backend_;
  const int rank_;
  const bool brings_;                     // false: another rank has the same
  const std::int64_t begin_, size_;       // of the rank's elements
  std::vector<std::vector<float>> sums_;  // [waiting], on the host
  std::vector<float> fetched_;
  Storage changed_;
  const float* changed_gradients_ = nullptr;
};

}  // namespace lockstep
