#include "step/gradient_clip.h"

#include <algorithm>
#include <limits>

#include "step/parameter_ranges.h"

namespace lockstep {

GradientClip::GradientClip(const GradientClipping& bounds, std::int64_t elements,
                           const UpdateShare& share, Backend& backend, Communicator& communicator)
    : optimizer_(backend.optimizer()),
      communicator_(share.owners == 1 ? lone_rank() : communicator),
      max_norm_(bounds.norm),
      most_(bounds.value > 0 ? bounds.value : std::numeric_limits<float>::infinity()),
      owner_(share.owner) {
  if (max_norm_ <= 0) return;
  for (int owner = 0; owner < share.owners; ++owner) {
    const ElementRange owned = owned_range(elements, owner, share.owners);
    squares_.push_back(
        {nullptr, owned.begin / kNormBlock, (owned.size() + kNormBlock - 1) / kNormBlock});
    blocks_ = std::max(blocks_, squares_.back().count);
  }
  own_ = backend.allocate(static_cast<std::size_t>(blocks_) * sizeof(double));
  factor_ = backend.allocate(sizeof(float));
}

void GradientClip::bound(OptimizerShard& shard) {
  shard.most = most_;
  if (squares_.empty()) return;
  optimizer_.gradient_squares(shard, static_cast<double*>(own_.data()));
  squares_[static_cast<std::size_t>(owner_)].blocks = static_cast<const double*>(own_.data());
  // A double for each channel: bits that nobody adds up on the way.
  const StatSlot own{1, static_cast<const float*>(own_.data())};
  point_at(exchange_.show(communicator_, {own, blocks_}));
  auto* const factor = static_cast<float*>(factor_.data());
  optimizer_.clip_factor({squares_, max_norm_, factor});
  shard.clip = {0.0F, factor};
}

// Ranks whose exchange is left out (SyncGroupOptions::hook) have their own squares alone.
void GradientClip::point_at(std::span<const StatSlot> slots) {
  if (slots.size() != squares_.size()) {
    for (std::size_t i = 0; i < squares_.size(); ++i) {
      if (static_cast<int>(i) != owner_) squares_[i].blocks = nullptr;
    }
    return;
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    squares_[i].blocks = reinterpret_cast<const double*>(slots[i].data);
  }
}

}  // namespace lockstep
