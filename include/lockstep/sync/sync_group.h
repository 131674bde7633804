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
#include "lockstep/core/options.h"
#include "lockstep/sync/barrier.h"
#include "lockstep/sync/communicator.h"
#include "lockstep/sync/group.h"
#include "lockstep/sync/threading.h"
#include "lockstep/sync/world.h"

namespace lockstep {

class AllReduce;
class ProcessGroups;
class Recorder;
class SumTransport;
class Watchdog;
class WorldLink;

/// How BatchNorm's statistics get from rank to rank.
enum class TransportKind : std::uint8_t { kAuto, kHost, kEvent, kNccl };
constexpr auto names_of(TransportKind) {
  return std::to_array<Named<TransportKind>>({{"auto", TransportKind::kAuto},
                                              {"host", TransportKind::kHost},
                                              {"event", TransportKind::kEvent},
                                              {"nccl", TransportKind::kNccl}});
}

/// How gradients are summed and new weights reach all ranks: kOwner: whoever owns a share of the
/// parameters does both for all; kAllReduce: every rank gets all sums and updates its own weights.
enum class GradientExchangeKind : std::uint8_t { kAuto, kOwner, kAllReduce };
constexpr auto names_of(GradientExchangeKind) {
  return std::to_array<Named<GradientExchangeKind>>(
      {{"auto", GradientExchangeKind::kAuto},
       {"owner", GradientExchangeKind::kOwner},
       {"all_reduce", GradientExchangeKind::kAllReduce}});
}

struct SyncGroupOptions {
  TransportKind transport = TransportKind::kAuto;   // see resolve_transport
  bool all_reduce = false;                          // whether sums will be asked for
  std::chrono::milliseconds stall_timeout{60'000};  // of the watchdog; 0: none
  /// Called before each exchange, barrier and all-reduce of a rank, for tests that delay or break a
  /// replica: it may sleep, throw, or return false to leave this call out (the rank then goes on
  /// with its own statistics).
  std::function<bool(int rank, const SyncCall& call)> hook = nullptr;
  /// The processes whose ranks meet. Outlives the group.
  std::reference_wrapper<World> world = World::alone();
};

/// This process's end of a group that spans all processes of the world. Ranks are numbered through
/// all processes, and only this process's have a Communicator here. A user's own barrier is for the
/// ranks of this process. The group outlives the replicas and the threads that use it.
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
  /// Returns the rank's end. This and the next two throw Error where the rank is not of this
  /// process.
  Communicator& at(int rank) { return *communicators_[own_index(rank)]; }
  /// Returns what sums the rank's gradients; null unless SyncGroupOptions::all_reduce.
  AllReduce* all_reduce(int rank);
  /// Returns what records the rank's steps; null where the transport cannot: kEvent can.
  Recorder* recorder(int rank);

  /// Makes a callback barrier over this process's ranks for the user's own exchanges. The group's
  /// failure ends it and its watchdog sees it; its failure is the group's. It lives as long as the
  /// group; the callback's memory must, too. Safe from any thread, at any time.
  template <typename Message, typename Answer>
  Barrier<Message, Answer>& make_barrier(typename Barrier<Message, Answer>::Callback callback) {
    return make_barrier<Message, Answer>(layout_.own_of(contiguous_groups(size(), 0).front()),
                                         std::move(callback));
  }

  /// Calls World::exchange, which the group's failure ends, and explains an error as below.
  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in);
  /// Adds to what was heard of another process which replicas have not answered, and what this
  /// process's first one was doing. Safe from any thread.
  std::string explain_failure(const std::string& heard) const;
  /// Fills `all` [process] with what every process says; its memory is used again. All processes
  /// call it, one thread of each at a time. A process without others hears itself.
  void all_gather(std::span<const std::byte> own, std::vector<Bytes>& all);

  /// Makes every present and future wait throw PeerAborted. The first cause is kept; a null one
  /// becomes a ReplicaError that says so. Safe from any thread.
  void abort(std::exception_ptr cause) { failure_.raise(std::move(cause)); }
  /// Returns the first cause: what was given to `abort`, what a callback has thrown, a disagreement
  /// among the ranks, or a StalledError of the watchdog. Null when there is none.
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
  friend class StatisticsBarrier;

  using CallbackCounts = std::array<std::atomic<std::int64_t>, 3>;  // [direction]

  void end_waits() override;
  std::size_t own_index(int rank) const;
  /// `ranks`: of this process.
  template <typename Message, typename Answer>
  Barrier<Message, Answer>& make_barrier(std::vector<int> ranks,
                                         typename Barrier<Message, Answer>::Callback callback) {
    auto barrier = std::make_unique<Barrier<Message, Answer>>(std::move(ranks), std::move(callback),
                                                              failure_, &progress_, spin_);
    Barrier<Message, Answer>& made = *barrier;
    const std::lock_guard lock(barriers_mutex_);
    barriers_.push_back(std::move(barrier));
    return made;
  }
  std::optional<AnyBarrier::Wait> longest_wait() const;

  const SyncGroupOptions options_;
  const std::chrono::microseconds spin_;
  const RankLayout layout_;
  Progress progress_;
  Failure failure_;
  CallbackCounts callbacks_{};
  std::vector<std::unique_ptr<SumTransport>> sums_;  // [rank], or none
  mutable threading::Mutex barriers_mutex_;
  std::vector<std::unique_ptr<AnyBarrier>> barriers_;
  bool on_host_ = false;  // Transport::on_host
  std::unique_ptr<WorldLink> link_;
  std::unique_ptr<ProcessGroups> groups_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  // [rank]
  std::vector<std::unique_ptr<Recorder>> recorders_;          // [rank], or none
  std::vector<std::unique_ptr<AllReduce>> all_reduces_;       // [rank], or none
  std::unique_ptr<Watchdog> watchdog_;  // last: its thread reads the members above
};

/// A rank's stay in a group, made by its thread when it begins. A thread that leaves without
/// `finish`, by an exception or an early return, aborts the group, so that the others leave their
/// waits at once and need not hear of it from the watchdog. Who catches the exception may call
/// SyncGroup::abort with it before: the first cause is kept.
///
///   std::thread([&] {
///     RankGuard guard(group, rank);
///     work(group.at(rank));
///     guard.finish();
///   });
class RankGuard {
 public:
  /// The group outlives the object. Throws Error where the rank is not of this process.
  RankGuard(SyncGroup& group, int rank);
  RankGuard(const RankGuard&) = delete;
  RankGuard& operator=(const RankGuard&) = delete;
  ~RankGuard();

  /// Says that the rank has done all its exchanges.
  void finish() { finished_ = true; }

 private:
  SyncGroup& group_;
  const int rank_;
  const int exceptions_;  // under way when the guard was made
  bool finished_ = false;
};

}  // namespace lockstep
