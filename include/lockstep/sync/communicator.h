#pragma once
// How BatchNorm statistics travel between replicas. A layer knows only this interface: it hands in
// its partial statistics and gets the slots to combine, whatever the transport. All transports give
// the same bits. Sums over all ranks, of gradients, take the same way.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/sync/sync_master.h"

namespace lockstep {

/// One rank's end. Used by that rank's thread, on that rank's device.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Tells a transport of GPUs whose stream it orders. Called once by the rank's thread, after its
  /// backend is there and before its first exchange; the backend outlives the last one.
  virtual void attach(Backend& backend) { static_cast<void>(backend); }

  /// Exchanges partial statistics ([2, call.channels] floats on this rank's device) with the sync
  /// group. Forward slots are (mean, M2), backward slots sums; direction says which merge applies.
  /// The result is one slot that is already merged (`host`), or one per rank of the group in rank
  /// order (`event`): the consumer merges what it gets. Valid until the second exchange after this
  /// one. Throws as SyncMaster::exchange.
  ///
  /// On GPUs peers may read `local` in place: what writes it again is issued after the next
  /// `exchange` or `barrier` has returned, or after all ranks have synchronized their backends and
  /// met. On the CPU it may be written when this returns.
  virtual std::span<const StatSlot> exchange(const SyncCall& call, const StatSlot& local) = 0;

  /// Total count behind the last `exchange`, known on the host.
  virtual std::int64_t last_count() const = 0;

  /// Waits for all ranks of the run (not only the sync group): on a GPU orders their streams.
  /// `where` names the place in reports.
  virtual void barrier(const char* where) = 0;

  /// Begins to sum data[0, count), device memory of this rank, in place over all ranks of the run,
  /// behind what the rank's stream has been given until now; on a GPU beside what it is given next.
  /// All ranks get the same bits. A meeting like `exchange`: all ranks make the same calls in the
  /// same order, and the one that does not is named. REQUIRES: CommunicatorOptions::all_reduce.
  virtual void start_all_reduce(float* data, std::int64_t count);
  /// What the rank's stream is given from now on follows all sums started. Until then their data is
  /// neither read nor written. Once per step, also when nothing was started.
  virtual void finish_all_reduces() {}

  /// Whether steps can be recorded and replayed: where streams do all the waiting (`event`).
  virtual bool can_record() const { return false; }
  /// Calls `issue`, which gives this rank's stream its part of a step of all ranks; nothing of it
  /// is done, it becomes the recording that `replay_step` does, in place of an earlier one. All
  /// ranks call it at the same time. What was issued has been issued once before (it allocates
  /// nothing), and keeps its addresses. Throws Error when `can_record` is false, or when something
  /// in it cannot be recorded.
  virtual void record_step(const std::function<void()>& issue);
  /// Gives all ranks' streams the recorded step, after what they have been given before. All ranks
  /// call it at the same time.
  virtual void replay_step();

  /// Where this rank is, for the watchdog (sync/progress.h).
  virtual void enter(const char* activity, const char* place) = 0;

  /// Seconds this rank has spent waiting for others in `exchange` and in `barrier` since
  /// construction.
  virtual double exchange_wait_seconds() const = 0;
  virtual double barrier_wait_seconds() const = 0;
  /// Seconds this rank's thread has spent in `start_all_reduce`, waiting and working.
  virtual double all_reduce_seconds() const { return 0; }
};

struct CommunicatorOptions {
  int sync_group = 0;  // devices per BatchNorm group, 0: all; must divide the device count
  std::string transport = "auto";                   // host, event, nccl; see make_communicators
  bool all_reduce = false;                          // whether sums will be asked for
  std::chrono::milliseconds stall_timeout{60'000};  // of the watchdog; 0: none
  /// Called before each exchange, barrier and all-reduce of a rank, for tests that delay or break a
  /// replica: it may sleep, throw, or return false to leave this call out (the rank then goes on
  /// with its own statistics).
  std::function<bool(int rank, const SyncCall& call)> hook = nullptr;
};

/// All ranks' ends, the watchdog and the way to stop them. Owned by the run; outlives the replicas.
class CommunicatorGroup {
 public:
  virtual ~CommunicatorGroup() = default;

  virtual Communicator& at(int rank) = 0;
  /// Makes every present and future wait throw PeerAborted. The first cause is kept. Safe from any
  /// thread.
  virtual void abort(std::exception_ptr cause) = 0;
  /// The first cause given to `abort` (by the watchdog, say); null when none.
  virtual std::exception_ptr failure() const = 0;
  virtual Progress& progress() = 0;
};

/// The transport that `wanted` means: "auto" is "host" between virtual CPU devices, which have no
/// other, and "event" between GPUs.
std::string resolve_transport(const std::string& wanted, std::span<const Device> devices);

/// Throws ConfigError when the sync group does not divide the devices, or the transport or the
/// all-reduce does not fit them.
std::unique_ptr<CommunicatorGroup> make_communicators(std::span<const Device> devices,
                                                      const CommunicatorOptions& options);

/// Makes the communicators of replicas on GPUs for one transport.
using MakeGpuCommunicators = std::unique_ptr<CommunicatorGroup> (*)(std::span<const Device> devices,
                                                                    const CommunicatorOptions&);

/// A build with CUDA says here, before `main`, which transports it has between GPUs. `name` is a
/// literal.
void provide_gpu_transport(const char* name, MakeGpuCommunicators make);

}  // namespace lockstep
