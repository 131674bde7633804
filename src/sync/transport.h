#pragma once
// How BatchNorm's statistics get from one rank to the others. The ranks meet on the host in a
// callback barrier, whatever the transport. A transport says what a rank posts there, and how it
// makes slots that its device can read of what all have posted. All transports give the same bits,
// since all give one slot per rank, in rank order.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/sync/barrier.h"
#include "lockstep/sync/group.h"
#include "lockstep/sync/sync_group.h"
#include "lockstep/sync/world.h"

namespace lockstep {

class Communicator;
class SumTransport;

/// Records one rank's share of a step once, and replays the step as a whole, where streams do all
/// the waiting. All ranks make the same calls at the same time. Owned by the SyncGroup, used by the
/// rank's thread.
class Recorder {
 public:
  virtual ~Recorder() = default;

  /// Calls `issue`, which gives this rank's stream its share of a step of all ranks. Nothing of it
  /// is done: it becomes the recording that `replay` does, and replaces an earlier one. What is
  /// issued has been issued once before (it allocates nothing), and keeps its addresses. Throws
  /// Error when something in it cannot be recorded.
  virtual void record(const std::function<void()>& issue) = 0;
  /// Gives all ranks' streams the recorded step, after what they have been given before.
  virtual void replay() = 0;
};

class Transport;

/// What a rank brings to a barrier.
struct StatPost {
  StatSlot slot;           // as its peers are to find it
  void* handle = nullptr;  // what else the transport needs of this rank: an event, an address
  Transport* transport = nullptr;  // that of the first rank hears when all have posted; null: none
};

/// What all ranks of a group have brought, in their order. Valid until the rank posts again in the
/// group.
struct StatPosts {
  std::span<const StatSlot> slots;  // or all of them merged, as one (SyncCall::merge)
  std::span<void* const> handles;   // of the ranks of this process
};

/// One rank's transport. Owned by its Communicator and used by the rank's thread, except `abort`.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Whether the slots of posts lie on the host, so that they are merged there.
  virtual bool on_host() const { return false; }

  /// Called before the first exchange. `sums`: of this rank, null for none.
  virtual void attach(Backend&, SumTransport* sums) { static_cast<void>(sums); }
  /// Hears of a new partition, on the thread of one rank, while all ranks wait for it to return.
  virtual void add_partition(const RankPartition&) {}

  /// Returns what the rank brings, before the ranks of `group` meet. Peers read what the post
  /// points to until they post again in the group.
  virtual StatPost post(const SyncCall&, const Group& group, const StatSlot& local) = 0;
  /// Called for the set's first rank when all of the set have posted; none goes on before this
  /// returns. On the thread of the rank that came last. `handles`: as in StatPosts.
  virtual void all_posted(const SyncCall&, std::span<void* const> handles) {
    static_cast<void>(handles);
  }
  /// Does `work`, or gives it to the rank's stream, after `post` and until the others have come.
  virtual void meanwhile(const std::function<void()>& work) { work(); }
  /// Returns a slot per rank, after the meeting. This rank's device may read them behind what its
  /// stream has been given until now. They are valid until the rank's next exchange.
  virtual std::span<const StatSlot> receive(const SyncCall&, const Group& group,
                                            const StatPosts& posts) = 0;

  /// Around a barrier of all ranks that orders their streams: the handle that this rank brings, and
  /// what it does with those of all, by rank.
  virtual void* arrive() { return nullptr; }
  virtual void depart(std::span<void* const>) {}

  /// Null where steps cannot be recorded.
  virtual std::unique_ptr<Recorder> make_recorder(Communicator&) { return nullptr; }

  /// How long this rank's thread has waited for its device by now; nullopt: it does not. Any
  /// thread.
  virtual std::optional<std::chrono::steady_clock::duration> device_wait() const { return {}; }

  /// Ends what this rank's device waits for, when the run has failed. Safe from any thread.
  virtual void abort() {}
};

using Transports = std::vector<std::unique_ptr<Transport>>;  // [rank of this process]

/// What process 0 says; all processes make the same calls.
using Broadcast = std::function<Bytes(const Bytes& own)>;

/// Between replicas on the CPU: peers read a rank's statistics where they lie.
Transports make_host_transports(std::span<const Device> devices);

/// The transport that `wanted` means: kAuto is kHost between virtual CPU devices, which have no
/// other, and between GPUs of several processes, which do not reach each other's memory; it is
/// kEvent between those of one.
TransportKind resolve_transport(TransportKind wanted, const RankLayout& layout);

/// Makes those of the ranks of this process. Throws ConfigError when the transport does not fit the
/// devices.
Transports make_transports(const RankLayout& layout, const Broadcast& broadcast,
                           TransportKind wanted);

using MakeTransports = Transports (*)(const RankLayout& layout, const Broadcast& broadcast);

/// register_cuda() (lockstep/cuda.h) says here which transports there are between GPUs; one that is
/// known is replaced.
void provide_gpu_transport(TransportKind kind, MakeTransports make);

}  // namespace lockstep
