#include "sync/statistics_barrier.h"

#include <algorithm>

namespace lockstep {

StatisticsBarrier::StatisticsBarrier(SyncGroup& group, const std::vector<int>& ranks, int channel)
    : group_(group),
      first_(static_cast<std::size_t>(
          std::ranges::lower_bound(ranks, group.rank_layout().first_rank()) - ranks.begin())),
      slots_(ranks.size()),
      handles_(group.rank_layout().own_of(ranks).size()),
      barrier_(group.make_barrier<StatPost, StatPosts>(
          group.rank_layout().own_of(ranks),
          [this](const SyncCall& call, std::span<const StatPost> posts,
                 std::span<StatPosts> answers) {
            collect(call, posts);
            if (posts.front().transport != nullptr) {
              posts.front().transport->all_posted(call, handles_);
            }
            std::ranges::fill(answers, StatPosts{merged(call), handles_});
            ++group_.callbacks_[static_cast<std::size_t>(call.direction)];
          })) {
  if (handles_.size() < ranks.size()) hop_ = std::make_unique<WorldHop>(group, channel, ranks);
}

void StatisticsBarrier::collect(const SyncCall& call, std::span<const StatPost> posts) {
  for (std::size_t own = 0; own < posts.size(); ++own) {
    slots_[first_ + own] = posts[own].slot;
    handles_[own] = posts[own].handle;
  }
  // Barriers and the like order the streams of one process.
  const bool of_all_processes = call.channels > 0;
  if (hop_ && of_all_processes) hop_->exchange(call, slots_);
}

std::span<const StatSlot> StatisticsBarrier::merged(const SyncCall& call) {
  if (call.merge == nullptr || !group_.on_host_) return slots_;
  const auto floats = static_cast<std::size_t>(2 * call.channels);
  if (merged_.size() < floats) merged_.resize(floats);
  merged_slot_ = {call.merge(slots_, call.channels, merged_.data()), merged_.data()};
  return {&merged_slot_, 1};
}

}  // namespace lockstep
