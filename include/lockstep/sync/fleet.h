#pragma once
// Several processes that train together, one per machine, each with replicas of its own: what they
// say to each other. A run in one process has no fleet.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

using Bytes = std::vector<std::byte>;

/// Outlives all that is given it. Safe from any thread, one at a time in each channel.
class Fleet {
 public:
  virtual ~Fleet() = default;

  virtual int process() const = 0;
  virtual int processes() const = 0;
  /// What the machines are called: [process].
  virtual const std::vector<std::string>& hosts() const = 0;

  /// Gives out[p] to every process p of `peers`, who exchange with this one and each other, and
  /// waits for what p gives to this process: in[p], whose memory is used again. `out` and `in` have
  /// an entry for each process. All of them make the same calls in a channel, in the same order.
  /// Throws PeerAborted when `stop` has become true.
  virtual void exchange(int channel, std::span<const int> peers,
                        std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                        const std::function<bool()>& stop) = 0;

  /// The processes that calls under way have not heard of yet.
  virtual std::vector<int> waiting_for() const = 0;

  /// For how long nothing was heard of a process, which says several times a second that it runs,
  /// whatever its threads are about. The longest there is where processes do not say so.
  virtual std::chrono::steady_clock::duration silence_of(int process) const {
    static_cast<void>(process);
    return std::chrono::steady_clock::duration::max();
  }

  /// Tells the others why this one ends: their exchanges throw ReplicaError with this text. Where
  /// it ends because of another it returns when that one has, whose exit code is the run's.
  virtual void say_last_words(const std::string& text) { static_cast<void>(text); }
  /// Whether it is for this process to show an error of this text that ends it. Not what it has
  /// heard from another, which is on stderr already.
  virtual bool shows_error(const std::string& text) const {
    static_cast<void>(text);
    return true;
  }
  /// What to do as soon as this process hears why another ends, on a thread of the fleet's: its own
  /// may be in a call that does not return, or in which MPI ends the process because its peer has
  /// gone. `say` is given what was heard and returns what stderr is to show: process 0's at once,
  /// that of another when none of its threads has come to say it within a fifth of a second. Null:
  /// nothing; returns when the function before is no longer running.
  virtual void on_failure(std::function<std::string(const std::string& heard)> say) {
    static_cast<void>(say);
  }
  /// Ends all processes, this one too, with this exit code.
  virtual void abort(int exit_code) = 0;
};

/// Whether mpirun or srun has started other processes with this one.
bool launched_with_others();

/// The processes that mpirun or srun has started with this one, if there are others; null for one
/// alone. Where a launcher speaks of others this loads liblockstep_mpi.so, which lies beside the
/// program, in its ../lib/lockstep, or where LOCKSTEP_MPI_LIBRARY says. Of them, one that dies is
/// noticed at once (a socket to process 0): exchanges then throw ReplicaError naming it. Throws
/// ConfigError when there is no such library. Called once.
std::unique_ptr<Fleet> join_fleet();

/// Of Fleet::exchange. Exchanges in BatchNorm's process groups have channels of their own, from
/// kFirstGroupChannel on.
enum FleetChannel : int {
  kStepChannel = 0,     // what happens in a step, in the order of the network
  kControlChannel = 1,  // between steps, and what a step has come to
  kFirstGroupChannel = 2,
};

/// Which ranks and devices are whose. Ranks are numbered through all processes, process 0's first.
struct Roster {
  int process = 0;                 // this one
  std::vector<int> first;          // [process] its first rank; at the end the number of all ranks
  std::vector<Device> devices;     // [rank]
  std::vector<std::string> hosts;  // [process]

  int processes() const { return static_cast<int>(first.size()) - 1; }
  int ranks() const { return first.back(); }
  int first_rank() const { return first[static_cast<std::size_t>(process)]; }
  int own_ranks() const { return first[static_cast<std::size_t>(process) + 1] - first_rank(); }
  int process_of(int rank) const;
  std::vector<int> peers() const;  // the other processes
  /// "process 1 (hostb, replicas 4 to 7)".
  std::string describe(int of_process) const;
  /// "replica 5 (cpu:1)", or "replica 5 (cpu:1 of hostb)".
  std::string describe_rank(int rank) const;
  /// How to start as many replicas again, where this process's devices are `own`: "cpu:4", or
  /// "cpu:4 in each of 2 processes", or "cpu:4 and others in 2 processes".
  std::string placement(const std::string& own) const;
};

/// Tells the others of this process's devices and hears of theirs. `fleet`: null for one process.
Roster make_roster(Fleet* fleet, std::span<const Device> devices);

/// What every process says: [process]. A collective call in the control channel, before there is a
/// SyncGroup.
std::vector<Bytes> all_gather(Fleet& fleet, std::span<const std::byte> own);
std::vector<std::string> all_gather(Fleet& fleet, const std::string& own);
/// What process 0 says.
std::string broadcast(Fleet& fleet, const std::string& own);

}  // namespace lockstep
