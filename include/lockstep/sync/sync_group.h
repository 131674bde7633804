#pragma once
// The ranks of a run, one thread each: where they meet, where each of them is, the watchdog, and
// the one failure that ends all their waits. For DataParallel, and for whoever has threads of his
// own: a SyncGroup for the devices, `at(rank)` for each thread, `abort` when one of them fails.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/sync/all_reduce.h"
#include "lockstep/sync/communicator.h"
#include "lockstep/sync/failure.h"
#include "lockstep/sync/partition.h"
#include "lockstep/sync/progress.h"
#include "lockstep/sync/recorder.h"
#include "lockstep/sync/sync_master.h"
#include "lockstep/sync/threading.h"
#include "lockstep/sync/world.h"

namespace lockstep {

class Watchdog;

struct SyncGroupOptions {
  std::string transport = "auto";                   // host, event, nccl; see resolve_transport
  bool all_reduce = false;                          // whether sums will be asked for
  std::chrono::milliseconds stall_timeout{60'000};  // of the watchdog; 0: none
  /// Called before each exchange, barrier and all-reduce of a rank, for tests that delay or break a
  /// replica: it may sleep, throw, or return false to leave this call out (the rank then goes on
  /// with its own statistics).
  std::function<bool(int rank, const SyncCall& call)> hook = nullptr;
  /// The processes whose ranks meet. Outlives the group.
  std::reference_wrapper<World> world = World::alone();
};

/// Outlives the replicas, and the threads that use it. It is this process's end of a group over all
/// processes of the world: ranks are numbered through, and only those of this process have a
/// Communicator here. Barriers and masters of the user's own are those of this process.
class SyncGroup final : private Failure::Listener {
 public:
  /// `devices`: of this process. Throws ConfigError when the transport, the all-reduce or the world
  /// does not fit them.
  explicit SyncGroup(std::span<const Device> devices, const SyncGroupOptions& options = {});
  SyncGroup(const SyncGroup&) = delete;
  SyncGroup& operator=(const SyncGroup&) = delete;
  ~SyncGroup();

  /// Ranks of all processes.
  int size() const { return layout_.ranks(); }
  /// Which of them are this process's.
  const RankLayout& rank_layout() const { return layout_; }
  /// REQUIRES: the rank is of this process, as in the next two.
  Communicator& at(int rank) { return *ends_[own_index(rank)]; }
  /// Of a rank; null unless SyncGroupOptions::all_reduce.
  AllReduce* all_reduce(int rank);
  /// Of a rank; null where the transport cannot record steps: "event" can.
  Recorder* recorder(int rank);

  /// A callback barrier over this process's ranks for the user's own exchanges, which the group's
  /// failure ends and its watchdog sees, and whose failure is the group's. It lives as long as the
  /// group; the callback's memory must, too. Safe from any thread, at any time.
  SyncMaster& make_master(SyncMaster::Callback callback);

  /// World::exchange, until the group fails. What ends it is explained as below.
  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in);
  /// What was heard of another process, with the replicas that have not answered and what this
  /// process's first one was about. Safe from any thread.
  std::string explain_failure(const std::string& heard) const;
  /// Fills in what every process says, [process], into memory that is used again; all call it, one
  /// thread of each at a time. One process alone hears itself.
  void all_gather(std::span<const std::byte> own, std::vector<Bytes>& all);

  /// Makes every present and future wait throw PeerAborted. The first cause is kept. Safe from any
  /// thread.
  void abort(std::exception_ptr cause) { failure_.raise(std::move(cause)); }
  /// The first cause: given to `abort`, thrown by a callback, a disagreement among the ranks, or a
  /// StalledError of the watchdog. Null when none.
  std::exception_ptr failure() const { return failure_.cause(); }
  /// How often the callbacks of exchanges in this direction have run, in all process groups
  /// together (kOther: of barriers): once for all ranks that met. A replayed step runs none.
  std::int64_t callbacks(Direction direction) const {
    return callbacks_[static_cast<std::size_t>(direction)];
  }
  /// Where every rank is.
  const Progress& progress() const { return progress_; }

 private:
  friend class Communicator;

  using CallbackCounts = std::array<std::atomic<std::int64_t>, 3>;  // [direction]

  /// Process groups that have been joined.
  struct Partition {
    RankPartition sets;                // normalized
    std::vector<SyncMaster*> masters;  // [set]; null where no rank is this process's
  };

  World& world() const { return options_.world; }
  void end_waits() override;
  std::size_t own_index(int rank) const {
    return static_cast<std::size_t>(rank - layout_.first_rank());
  }
  std::vector<int> own_ranks_of(const std::vector<int>& ranks) const;
  SyncMaster::Callback show_posts(const std::vector<int>& ranks, int channel);
  SyncMaster& add_master(std::vector<int> ranks, SyncMaster::Callback callback);
  void add_partition(const RankPartition& sets);
  std::optional<int> find_partition(const RankPartition& sets) const;
  void answer_join(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers);
  std::optional<SyncMaster::Wait> longest_wait() const;
  std::optional<SyncMaster::Wait> gathering() const;
  Bytes broadcast(const Bytes& own);
  void mark_gathering(std::optional<threading::Clock::time_point> since);

  const SyncGroupOptions options_;
  const std::chrono::microseconds spin_;
  const RankLayout layout_;
  Progress progress_;
  Failure failure_;
  CallbackCounts callbacks_{};
  SumTransports sums_;  // [rank], or none
  mutable threading::Mutex masters_mutex_;
  std::vector<std::unique_ptr<SyncMaster>> masters_;
  SyncMaster* joins_ = nullptr;
  std::vector<Partition> partitions_;  // changed only while all ranks wait in `joins_`
  int channels_ = kFirstGroupChannel;  // of the world, in use
  const std::vector<int> peers_;
  std::vector<std::span<const std::byte>> said_;  // [process] what an all_gather gives
  mutable threading::Mutex gather_mutex_;
  std::optional<threading::Clock::time_point> gathering_since_;  // an all_gather is under way
  std::vector<std::unique_ptr<Communicator>> ends_;              // [rank]
  std::vector<std::unique_ptr<Recorder>> recorders_;             // [rank], or none
  std::vector<std::unique_ptr<AllReduce>> all_reduces_;          // [rank], or none
  std::unique_ptr<Watchdog> watchdog_;  // last: its thread reads the members above
};

}  // namespace lockstep
