#pragma once
// One rank's end of a SyncGroup. A layer knows only this: it shows its partial statistics to its
// process group and gets those of all, merged, or one slot per rank to merge in rank order.
//
// The rule that is easily broken: peers read a rank's statistics where they lie. See `all_show`.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/sync/barrier.h"
#include "lockstep/sync/group.h"

namespace lockstep {

class AllReduce;
class SyncGroup;
class Transport;
struct StatPost;
struct StatPosts;

/// Owned by the group. Used by the rank's thread, on the rank's device.
class Communicator final {
 public:
  Communicator(SyncGroup& group, int rank, std::unique_ptr<Transport> transport);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return rank_; }
  /// How many ranks the whole group has.
  int size() const;

  /// Tells a transport of GPUs whose stream it orders. Called once, after the backend is there and
  /// before the first exchange; the backend outlives the last one. All ranks call it where the
  /// group has an all-reduce.
  void attach(Backend& backend);

  /// Returns the number that stands for these process groups in SyncCall::partition. Every rank's
  /// thread calls it, with equal partitions and in the same order, before its first exchange in
  /// them: when the network is built, or in its first forward pass. Equal partitions share a
  /// number, and joining one again costs no meeting; all ranks in one set have number 0. Throws
  /// ConfigError when the sets are no partition of the ranks, else as `all_show`.
  int join(const RankPartition& partition);

  /// Exchanges partial statistics, [local.parts, 2, call.channels] floats on this rank's device
  /// (one part with the transport "nccl"), with the ranks of its group in call.partition. Returns
  /// the slots of all ranks merged into one, where call.merge says how and they lie on the host;
  /// else one slot per rank of the group, in ascending rank order, for the consumer to merge in
  /// this order (BatchNormForward::slots and the like), valid until this rank's next exchange.
  /// Throws as Barrier::exchange, and Error where local.data is null, even with a count of 0.
  ///
  /// `meanwhile`: work of this rank that nobody else waits for, done once its statistics are handed
  /// in and before it waits for the others'; on a GPU it is issued there. Null: none. It is left
  /// out where the hook leaves the exchange out.
  ///
  /// Peers read local.data where it lies. It may be written again, or go, once the rank's next
  /// `all_show` in the same partition or its next `barrier` has returned; on a GPU by what the
  /// stream is given after that. It may also go after all ranks have synchronized their backends
  /// and met. Where a rank may fail between, its memory has to outlive the other ranks' use of it:
  /// the owner of the threads keeps all replicas until it has joined them.
  std::span<const StatSlot> all_show(const SyncCall& call, const StatSlot& local,
                                     const std::function<void()>& meanwhile = nullptr);

  /// Waits for all ranks (of all process groups): on a GPU orders their streams. `where` names the
  /// barrier in reports.
  void barrier(const char* where);
  /// Waits for all ranks on the host alone: for transports and recorders, between steps that order
  /// streams themselves.
  void meet(const char* where);

  /// Throws PeerAborted when the group has failed: for a rank between pieces of work of its own, so
  /// that it does not go on for a run that is over.
  void leave_if_failed() const;

  /// Says where this rank is, for the watchdog and the reports of errors (sync/barrier.h).
  void enter(const char* activity, const char* place);
  void begin_step(std::int64_t step);

  /// Seconds since construction that this rank has waited for others: in `all_show`, without what
  /// it did meanwhile, and in everything else.
  double exchange_wait_seconds() const { return exchange_wait_; }
  double barrier_wait_seconds() const { return barrier_wait_; }

 private:
  friend class AllReduce;
  friend class SyncGroup;

  bool hook_allows(const SyncCall& call) const;
  void enter_group(int partition);
  StatPosts meet_in(const Group& group, const SyncCall& call, const StatPost& post, double& waited,
                    const std::function<void()>& meanwhile = nullptr);
  StatPosts meet_all(const SyncCall& call, const StatPost& post);

  SyncGroup& group_;
  const int rank_;
  const std::unique_ptr<Transport> transport_;
  std::vector<Group> groups_;         // [partition] that this rank is in
  StatSlot own_;                      // what a call returns that the hook leaves out
  std::int64_t barriers_of_all_ = 0;  // of all ranks, that have returned
  double exchange_wait_ = 0;
  double barrier_wait_ = 0;
};

}  // namespace lockstep
