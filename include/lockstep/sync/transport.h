#pragma once
// How BatchNorm's statistics get from one rank to the others. The ranks meet on the host in a
// callback barrier, whatever the transport; a transport says what a rank posts there and how it
// comes from what all have posted to slots that its device can read. All transports give the same
// bits, since all give one slot per rank, in rank order.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/sync/partition.h"
#include "lockstep/sync/recorder.h"
#include "lockstep/sync/sync_master.h"
#include "lockstep/sync/world.h"

namespace lockstep {

class Communicator;
class SumTransport;

/// The ranks that a rank exchanges with.
struct ProcessGroup {
  int partition = 0;       // SyncCall::partition
  int set = 0;             // in the partition
  std::vector<int> ranks;  // ascending
  int place = 0;           // of the rank itself in `ranks`
};

/// What a rank brings to a meeting.
struct StatPost {
  StatSlot slot;           // as its peers are to find it
  void* ticket = nullptr;  // what else the transport needs of this rank
};

/// What all ranks of a set have brought, in their order. Valid until the rank posts again in the
/// set.
struct StatPosts {
  std::span<const StatSlot> slots;
  std::span<void* const> tickets;  // of those of this process
};

/// One rank's transport. Owned by its Communicator and used by the rank's thread, except `abort`.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Before the first exchange. `sums`: of this rank, null for none.
  virtual void attach(Backend&, SumTransport* sums) { static_cast<void>(sums); }
  /// A new partition, on one thread of all: while all ranks wait for it to return.
  virtual void add_partition(const RankPartition&) {}

  /// Before the ranks of `group` meet. What the post points to is read by peers until they post
  /// again in the group.
  virtual StatPost post(const SyncCall&, const ProcessGroup& group, const StatSlot& local) = 0;
  /// Between the two: what this rank does, or gives its stream, until the others have met it.
  virtual void meanwhile(const std::function<void()>& work) { work(); }
  /// After it: a slot per rank, which this rank's device may read behind what its stream has been
  /// given until now. Valid until the rank's next exchange.
  virtual std::span<const StatSlot> receive(const SyncCall&, const ProcessGroup& group,
                                            const StatPosts& posts) = 0;

  /// Around a meeting of all ranks that orders their streams: the ticket that this rank brings, and
  /// what it does with those of all, by rank.
  virtual void* arrive() { return nullptr; }
  virtual void depart(std::span<void* const>) {}

  /// Null where steps cannot be recorded.
  virtual std::unique_ptr<Recorder> make_recorder(Communicator&) { return nullptr; }

  /// Ends what this rank's device waits for, when the run has failed. Safe from any thread.
  virtual void abort() {}
};

using Transports = std::vector<std::unique_ptr<Transport>>;  // [rank of this process]

/// Whose transports are made: the ranks of one process, among those of all.
struct TransportRanks {
  std::span<const Device> devices;  // of this process
  int first = 0;                    // its first rank
  int all = 0;                      // ranks of all processes
  /// What process 0 says; all processes make the same calls.
  std::function<Bytes(const Bytes& own)> broadcast = [](const Bytes& own) { return own; };
};

/// The ranks of a run of one process.
TransportRanks ranks_of_one_process(std::span<const Device> devices);

/// Between replicas on the CPU: peers read a rank's statistics where they lie.
Transports make_host_transports(std::span<const Device> devices);

/// The transport that `wanted` means: "auto" is "host" between virtual CPU devices, which have no
/// other, and between GPUs of several processes, which do not reach each other's memory; it is
/// "event" between those of one.
std::string resolve_transport(const std::string& wanted, const TransportRanks& ranks);

/// Throws ConfigError when the transport does not fit the devices.
Transports make_transports(const TransportRanks& ranks, const std::string& wanted);

using MakeTransports = Transports (*)(const TransportRanks& ranks);

/// register_cuda() (lockstep/cuda.h) says here which transports there are between GPUs. `name` is a
/// literal; one that is known is replaced.
void provide_gpu_transport(const char* name, MakeTransports make);

}  // namespace lockstep
