#pragma once
// The host side of every transport: where the ranks of a sync group meet, the watchdog, and the way
// to stop them. A transport adds what its callback answers and what each rank does with the answer.

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/sync/abortable_barrier.h"
#include "lockstep/sync/all_reduce.h"
#include "lockstep/sync/communicator.h"
#include "sync/watchdog.h"

namespace lockstep {

class RendezvousGroup;

/// One rank's end. Subclasses are the transports.
class RendezvousEnd : public Communicator {
 public:
  RendezvousEnd(RendezvousGroup& group, int rank) : group_(group), rank_(rank) {}

  int rank() const final { return rank_; }
  int size() const final;
  /// An override calls this first.
  void attach(Backend& backend) override;
  std::span<const StatSlot> exchange(const SyncCall& call, const StatSlot& local) final;
  std::int64_t last_count() const final { return last_count_; }
  void barrier(const char* where) final;
  void start_all_reduce(float* data, std::int64_t count) final;
  void finish_all_reduces() final;
  void enter(const char* activity, const char* place) final;
  double exchange_wait_seconds() const final { return exchange_wait_; }
  double barrier_wait_seconds() const final { return barrier_wait_; }
  double all_reduce_seconds() const final { return all_reduce_seconds_; }

  /// Ends what this rank's device waits for; called once when the run fails, by any thread.
  virtual void abort() {}

 protected:
  /// The slots of `call` for this rank; they live as Communicator::exchange says.
  virtual std::span<const StatSlot> exchange_in_group(const SyncCall& call,
                                                      const StatSlot& local) = 0;
  /// Around the meeting of all ranks, where a device's work has to be ordered, too.
  virtual void before_barrier() {}
  virtual void after_barrier() {}

  RendezvousGroup& group() { return group_; }
  /// Around every wait for other ranks.
  virtual void before_wait() {}
  virtual void after_wait() {}

  /// Null when the run has none.
  AllReduce* all_reduce() const;
  /// Posts to the sync group's callback barrier and waits for the answer.
  SyncAnswer meet(const SyncMessage& message);
  /// Waits on the host for all ranks of the run, which come here with the same `call`.
  void meet_all(const SyncCall& call);
  void meet_all(const char* where) { meet_all({where, Direction::kOther, 0, 0}); }

 private:
  class Waiting;

  bool hook_allows(const SyncCall& call) const;

  RendezvousGroup& group_;
  const int rank_;
  std::array<StatSlot, 2> own_{};  // of the last two calls, for those that the hook leaves out
  int turn_ = 0;
  std::int64_t last_count_ = 0;
  double exchange_wait_ = 0;
  double barrier_wait_ = 0;
  int all_reduces_ = 0;  // started since the last `finish_all_reduces`
  double all_reduce_seconds_ = 0;
};

/// All ranks' ends.
class RendezvousGroup final : public CommunicatorGroup {
 public:
  /// The callback of the sync group of `ranks` ranks from `first_rank` on. It sees barriers, too
  /// (Direction::kOther), and may leave their answers alone.
  using MakeCallback = std::function<SyncMaster::Callback(int first_rank, int ranks)>;
  using MakeEnd = std::function<std::unique_ptr<RendezvousEnd>(RendezvousGroup& group, int rank)>;

  /// REQUIRES: options.sync_group is 0 or divides the number of devices.
  RendezvousGroup(std::span<const Device> devices, const CommunicatorOptions& options,
                  const MakeCallback& make_callback, const MakeEnd& make_end);

  RendezvousEnd& at(int rank) override { return *ends_[rank]; }
  void abort(std::exception_ptr cause) override;
  std::exception_ptr failure() const override;
  Progress& progress() override { return progress_; }
  /// Of a rank; null when the run has none.
  AllReduce* all_reduce(int rank) const {
    return all_reduces_.empty() ? nullptr : all_reduces_[static_cast<std::size_t>(rank)].get();
  }

  int size() const { return ranks_; }
  int ranks_per_group() const { return ranks_ / static_cast<int>(masters_.size()); }
  /// The first rank of the sync group of `rank`.
  int first_rank(int rank) const { return rank / ranks_per_group() * ranks_per_group(); }
  const CommunicatorOptions& options() const { return options_; }

  /// As SyncMaster::exchange, within the sync group of `rank`. A failure ends the other groups'
  /// waits as well.
  SyncAnswer exchange(int rank, const SyncMessage& message);
  /// Waits for all ranks of the run; nothing to do when one sync group holds them all.
  void wait_for_all_groups(int rank);

 private:
  std::optional<SyncMaster::Wait> longest_wait() const;

  const int ranks_;
  const CommunicatorOptions options_;
  Progress progress_;
  std::vector<std::unique_ptr<SyncMaster>> masters_;  // [sync group]
  AbortableBarrier all_ranks_;
  mutable std::mutex failure_mutex_;
  std::exception_ptr failure_;
  const AllReduces all_reduces_;                      // [rank], or none
  std::vector<std::unique_ptr<RendezvousEnd>> ends_;  // [rank]
  Watchdog watchdog_;                                 // last: its thread reads the members above
};

}  // namespace lockstep
