#pragma once
// One dedicated thread per rank for the whole run. Nothing escapes a replica thread: the first
// failure is sticky, wakes everyone who waits, and is rethrown to the caller with its rank and
// device.

#include <functional>
#include <memory>
#include <span>

#include "lockstep/core/device.h"
#include "lockstep/sync/sync_group.h"

namespace lockstep {

class ReplicaGroup {
 public:
  /// Starts the threads. `devices`: of this process; `group`, of the same devices, outlives the
  /// object.
  ReplicaGroup(std::span<const Device> devices, SyncGroup& group);
  /// Joins the threads; one that is stuck (see `run`) is left behind.
  ~ReplicaGroup();

  int size() const;

  /// Runs `work(rank)` on every thread of this process's ranks and returns when all are done. If
  /// any throws, aborts the sync group, waits for the others (they leave their waits at once) and
  /// rethrows the root cause as ReplicaError "replica 2 (cpu:2): ..." (DataError, NonFiniteError,
  /// ConfigError and StalledError keep their type). A rank that has not returned a second after the
  /// abort is reported as stuck and left behind. The group is unusable after a failure: further
  /// calls throw the same error.
  void run(const std::function<void(int rank)>& work);

  /// The same for work in which no rank waits for another. Where all have returned a second after
  /// the first failure, that is thrown as by `run`, and the group stays as it was.
  void attempt(const std::function<void(int rank)>& work);

  /// Whether a `run` has thrown: all further ones do.
  bool has_failed() const;

  /// Whether a thread had to be left behind and has not come back: what it uses must stay.
  bool has_stuck_thread() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
