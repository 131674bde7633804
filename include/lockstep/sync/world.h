#pragma once
// The processes that train together, one per machine, each with replicas of its own: what they say
// to each other. There always is a world. That of one process has no others: it hears itself.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

using Bytes = std::vector<std::byte>;

/// Which messages belong together. Exchanges in BatchNorm's process groups have channels of their
/// own, from kFirstGroupChannel on.
enum WorldChannel : int {
  kStepChannel = 0,     // what happens in a step, in the order of the network
  kControlChannel = 1,  // between steps, and what a step has come to
  kFirstGroupChannel = 2,
};

/// This class is the world of one process; init_world() makes that of several. All processes make
/// the same calls, in the same order in each channel. It outlives all that is given it, and is safe
/// from any thread, one at a time in each channel. Virtual functions have bodies here because
/// liblockstep_mpi.so, which derives a class, links to nothing of the program.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  /// Returns the world of one process without others, for whoever names no world.
  static World& alone();

  int process() const { return process_; }
  int size() const { return static_cast<int>(hosts_.size()); }
  /// Whether this is process 0, which speaks and writes for all.
  bool first() const { return process_ == 0; }
  /// What the machines are called: [process].
  const std::vector<std::string>& hosts() const { return hosts_; }

  // --- between steps, and before there is a SyncGroup ---
  /// Returns what every process says: [process].
  std::vector<Bytes> all_gather(std::span<const std::byte> own);
  std::vector<std::string> all_gather(const std::string& own);
  /// Returns what process 0 says; what the others would say does not matter.
  std::string broadcast(const std::string& own);
  /// Returns what `make` returns in process 0, which alone calls it.
  std::string from_first(const std::function<std::string()>& make);
  /// The same in the others alone: process 0 has it, and calls `make` only where there are others.
  std::optional<std::string> to_others(const std::function<std::string()>& make);
  /// Returns the first process that says something else than process 0; nullopt: none does.
  std::optional<int> first_to_differ(const std::string& own);
  /// Calls `action` in process 0 alone. What it throws ends all processes (announce_failure).
  void on_first(const std::function<void()>& action) const {
    if (first()) action();
  }

  /// Gives out[p] to every process p of `peers`, who exchange with this one and each other, and
  /// waits for what p gives to this process: in[p], whose memory is used again. `out` and `in` have
  /// an entry for each process. Throws PeerAborted when `stop` has become true, and ReplicaError
  /// with the reason when another process has ended.
  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                const std::function<bool()>& stop);
  /// How many bytes `exchange` has given to others so far.
  std::int64_t bytes_given() const { return bytes_given_; }

  // --- failures ---
  /// Returns the processes that calls under way have not heard of yet.
  virtual std::vector<int> waiting_for() const { return {}; }
  /// Returns for how long nothing was heard of a process, which says several times a second that it
  /// runs, whatever its threads do; the longest duration there is where processes do not say so.
  virtual std::chrono::steady_clock::duration silence_of(int process) const {
    static_cast<void>(process);
    return std::chrono::steady_clock::duration::max();
  }
  /// Tells the others why this one ends: their exchanges throw ReplicaError with this text. Where
  /// it ends because of another it returns when that one has, whose exit code is the run's.
  virtual void announce_failure(const std::string& reason) { static_cast<void>(reason); }
  /// Whether this process is to show an error of this text that ends it. It is not to show what it
  /// has heard from another, which is on stderr already.
  virtual bool shows_error(const std::string& text) const {
    static_cast<void>(text);
    return true;
  }
  /// `explain` is called as soon as this process hears why another has failed. It is given what was
  /// heard and returns what stderr is to show. It runs on a thread of the world's: those of the
  /// process may be in a call that does not return, or in which MPI ends the process. Process 0
  /// shows the text at once, another when none of its threads has announced a failure within a
  /// fifth of a second. Null: none; returns when the function before is no longer running.
  virtual void on_failure(std::function<std::string(const std::string& heard)> explain) {
    static_cast<void>(explain);
  }
  /// Ends all processes, this one too, with this exit code.
  [[noreturn]] virtual void abort(int exit_code) { std::_Exit(exit_code); }

 protected:
  World(int process, std::vector<std::string> hosts)
      : process_(process), hosts_(std::move(hosts)) {}

 private:
  /// Does an `exchange` with at least one peer.
  virtual void carry(int /*channel*/, std::span<const int> /*peers*/,
                     std::span<const std::span<const std::byte>> /*out*/, std::span<Bytes> /*in*/,
                     const std::function<bool()>& /*stop*/) {}

  const int process_ = 0;
  const std::vector<std::string> hosts_{""};
  std::atomic<std::int64_t> bytes_given_{0};
};

/// Whether mpirun or srun started other processes with this one.
bool launched_with_others();

/// The world of the processes that mpirun or srun started with this one. Where a launcher speaks of
/// others this loads liblockstep_mpi.so, which lies beside the program, in its ../lib/lockstep, or
/// where LOCKSTEP_MPI_LIBRARY says. A process that dies is noticed at once (failure_detector.h).
/// Throws ConfigError when there is no such library. Called once.
std::unique_ptr<World> init_world();

/// Which ranks and devices are whose. Ranks are numbered through all processes, process 0's first.
struct RankLayout {
  int process = 0;                 // this one
  std::vector<int> first;          // [process] its first rank; at the end the number of all ranks
  std::vector<Device> devices;     // [rank]
  std::vector<std::string> hosts;  // [process]

  int processes() const { return static_cast<int>(first.size()) - 1; }
  int ranks() const { return first.back(); }
  int first_rank() const { return first[static_cast<std::size_t>(process)]; }
  int own_ranks() const { return first[static_cast<std::size_t>(process) + 1] - first_rank(); }
  std::span<const Device> own_devices() const {
    return std::span(devices).subspan(static_cast<std::size_t>(first_rank()),
                                      static_cast<std::size_t>(own_ranks()));
  }
  int process_of(int rank) const;
  std::vector<int> peers() const;  // the other processes
  /// Returns those of the ranks that are this process's.
  std::vector<int> own_of(const std::vector<int>& ranks) const;
  /// "process 1 (hostb, replicas 4 to 7)".
  std::string describe(int of_process) const;
  /// "replica 5 (cpu:1)", or "replica 5 (cpu:1 of hostb)".
  std::string describe_rank(int rank) const;
  /// How to start as many replicas again, where this process's devices are `own`: "cpu:4", or
  /// "cpu:4 in each of 2 processes", or "cpu:4 and others in 2 processes".
  std::string placement(const std::string& own) const;
};

/// Tells the other processes of this one's devices, and returns all of them.
RankLayout make_rank_layout(World& world, std::span<const Device> devices);

}  // namespace lockstep
