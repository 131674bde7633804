#pragma once
// The reference transport: statistics lie in host memory and the master's thread merges them in
// rank order. One merged slot answers every rank of a group, so all ranks normalise by the same
// bits.

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/sync/abortable_barrier.h"
#include "lockstep/sync/communicator.h"
#include "sync/watchdog.h"

namespace lockstep {

/// The ranks of one BatchNorm group: their callback barrier and the merged statistics.
class HostSyncGroup {
 public:
  HostSyncGroup(int first_rank, int ranks, Progress* progress);

  SyncMaster& master() { return master_; }
  int first_rank() const { return first_rank_; }

 private:
  void merge(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers);

  const int first_rank_;
  std::vector<StatSlot> slots_;  // [rank in the group]
  std::array<std::vector<float>, 2>
      merged_{};  // [2, C] each, grown in the first step; used in turn
  int turn_ = 0;
  SyncMaster master_;
};

class HostCommunicatorGroup;

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(HostCommunicatorGroup& group, HostSyncGroup& sync_group, int rank)
      : group_(group), sync_group_(sync_group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override;
  std::span<const StatSlot> exchange(const SyncCall& call, const StatSlot& local) override;
  std::int64_t last_count() const override { return slots_[turn_].count; }
  void barrier(const char* where) override;
  void enter(const char* activity, const char* place) override;
  double exchange_wait_seconds() const override { return exchange_wait_; }
  double barrier_wait_seconds() const override { return barrier_wait_; }

 private:
  bool hook_allows(const SyncCall& call) const;
  SyncAnswer rendezvous(const SyncMessage& message);

  HostCommunicatorGroup& group_;
  HostSyncGroup& sync_group_;
  const int rank_;
  std::array<StatSlot, 2> slots_{};  // the last two answers
  int turn_ = 0;
  double exchange_wait_ = 0;
  double barrier_wait_ = 0;
};

class HostCommunicatorGroup final : public CommunicatorGroup {
 public:
  /// REQUIRES: options.sync_group is 0 or divides `ranks`.
  HostCommunicatorGroup(int ranks, const CommunicatorOptions& options);

  Communicator& at(int rank) override { return *communicators_[rank]; }
  void abort(std::exception_ptr cause) override;
  std::exception_ptr failure() const override;
  Progress& progress() override { return progress_; }

  int size() const { return static_cast<int>(communicators_.size()); }
  const CommunicatorOptions& options() const { return options_; }
  /// Waits for all ranks of the run; nothing to do when one sync group holds them all.
  void wait_for_all_groups(int rank);

 private:
  using SyncGroups = std::vector<std::unique_ptr<HostSyncGroup>>;
  using Ends = std::vector<std::unique_ptr<HostCommunicator>>;

  SyncGroups make_sync_groups(int ranks);
  Ends make_ends(int ranks);
  std::optional<SyncMaster::Wait> longest_wait() const;

  const CommunicatorOptions options_;
  Progress progress_;
  SyncGroups sync_groups_;
  Ends communicators_;  // [rank]
  AbortableBarrier all_ranks_;
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
  Watchdog watchdog_;  // last: its thread reads the members above
};

}  // namespace lockstep
