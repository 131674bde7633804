#include "sync/host_communicator.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/sync/describe.h"
#include "lockstep/sync/moments.h"

namespace lockstep {
namespace {

/// Adds the life time of the object, in seconds, to a total.
class WaitTimer {
 public:
  explicit WaitTimer(double& total) : total_(total) {}
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;
  ~WaitTimer() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

HostSyncGroup::HostSyncGroup(int first_rank, int ranks, Progress* progress)
    : first_rank_(first_rank),
      slots_(static_cast<std::size_t>(ranks)),
      master_(
          ranks, [this](auto messages, auto answers) { merge(messages, answers); }, progress,
          first_rank) {}

void HostSyncGroup::merge(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers) {
  const SyncCall& call = messages.front().call;
  if (call.direction == Direction::kOther) return;
  std::transform(messages.begin(), messages.end(), slots_.begin(), [](const SyncMessage& message) {
    return StatSlot{message.count, static_cast<const float*>(message.payload)};
  });
  turn_ = 1 - turn_;
  std::vector<float>& merged = merged_[turn_];
  const auto elements = static_cast<std::size_t>(2 * call.channels);
  if (merged.size() < elements) merged.resize(elements);
  const std::int64_t count = call.direction == Direction::kForward
                                 ? merge_moments(slots_, call.channels, merged.data())
                                 : merge_sums(slots_, call.channels, merged.data());
  std::fill(answers.begin(), answers.end(), SyncAnswer{count, merged.data()});
}

int HostCommunicator::size() const { return group_.size(); }

bool HostCommunicator::hook_allows(const SyncCall& call) const {
  const auto& hook = group_.options().hook;
  return !hook || hook(rank_, call);
}

SyncAnswer HostCommunicator::rendezvous(const SyncMessage& message) {
  try {
    return sync_group_.master().exchange(rank_ - sync_group_.first_rank(), message);
  } catch (const PeerAborted&) {
    throw;
  } catch (...) {
    // The failure of one sync group must also end the waits of the others.
    group_.abort(std::current_exception());
    throw;
  }
}

std::span<const StatSlot> HostCommunicator::exchange(const SyncCall& call, const StatSlot& local) {
  enter(to_string(call.direction), call.layer);
  const bool allowed = hook_allows(call);
  turn_ = 1 - turn_;
  StatSlot& slot = slots_[turn_];
  slot = local;
  if (allowed) {
    const WaitTimer timer(exchange_wait_);
    const SyncAnswer answer = rendezvous({call, local.count, local.data});
    slot = {answer.count, static_cast<const float*>(answer.payload)};
  }
  return {&slot, 1};
}

void HostCommunicator::barrier(const char* where) {
  const SyncCall call{where, Direction::kOther, 0, 0};
  enter("barrier", where);
  if (!hook_allows(call)) return;
  const WaitTimer timer(barrier_wait_);
  // Through the callback barrier: a rank that left out its last BatchNorm call of a step meets the
  // others' call here and is named at once, where a plain barrier would leave both sides waiting.
  rendezvous({call, 0, nullptr});
  group_.wait_for_all_groups(rank_);
}

void HostCommunicator::enter(const char* activity, const char* place) {
  group_.progress().enter(rank_, activity, place);
}

HostCommunicatorGroup::HostCommunicatorGroup(int ranks, const CommunicatorOptions& options)
    : options_(options),
      progress_(ranks),
      sync_groups_(make_sync_groups(ranks)),
      communicators_(make_ends(ranks)),
      all_ranks_(ranks),
      watchdog_(
          options.stall_timeout, [this] { return longest_wait(); },
          [this](std::exception_ptr stall) { abort(std::move(stall)); }) {}

HostCommunicatorGroup::SyncGroups HostCommunicatorGroup::make_sync_groups(int ranks) {
  const int width = options_.sync_group == 0 ? ranks : options_.sync_group;
  SyncGroups groups;
  for (int first = 0; first < ranks; first += width) {
    groups.push_back(std::make_unique<HostSyncGroup>(first, width, &progress_));
  }
  return groups;
}

HostCommunicatorGroup::Ends HostCommunicatorGroup::make_ends(int ranks) {
  const int width = ranks / static_cast<int>(sync_groups_.size());
  Ends ends;
  for (int rank = 0; rank < ranks; ++rank) {
    ends.push_back(std::make_unique<HostCommunicator>(*this, *sync_groups_[rank / width], rank));
  }
  return ends;
}

void HostCommunicatorGroup::wait_for_all_groups(int rank) {
  if (sync_groups_.size() > 1) all_ranks_.arrive_and_wait(rank);
}

void HostCommunicatorGroup::abort(std::exception_ptr cause) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = cause;
  }
  for (const auto& sync_group : sync_groups_) sync_group->master().abort(cause);
  all_ranks_.abort(cause);
}

std::exception_ptr HostCommunicatorGroup::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::optional<SyncMaster::Wait> HostCommunicatorGroup::longest_wait() const {
  std::optional<SyncMaster::Wait> all;
  const auto add = [&](std::chrono::steady_clock::duration longest, const std::string& report) {
    if (!all) {
      all = {longest, report};
      return;
    }
    all->longest = std::max(all->longest, longest);
    all->report += "; " + report;
  };
  for (const auto& sync_group : sync_groups_) {
    if (const auto wait = sync_group->master().waiting()) add(wait->longest, wait->report);
  }
  if (const auto wait = all_ranks_.waiting()) {
    const double seconds = std::chrono::duration<double>(wait->longest).count();
    add(wait->longest, concat(describe_ranks(wait->waiting), " waited up to ",
                              describe_seconds(seconds), " for the other sync groups"));
  }
  return all;
}

}  // namespace lockstep
