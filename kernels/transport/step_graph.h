#pragma once
// A step of all ranks as one CUDA Graph: captured once from the streams of all replicas, with the
// waits between them as edges, and launched as a whole. Rank 0's stream begins the capture and
// launches the graph; the others join it by waiting for an event, and are joined by one.
//
// CUDA does not promise that several threads may add to one graph at the same time: whoever issues
// during a capture holds the turn, and gives it away while it waits for other ranks.

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/operations/gpu_operations.h"

struct CUgraph_st;
struct CUgraphExec_st;

namespace lockstep::gpu {

struct ReleaseGraph {
  void operator()(CUgraph_st* graph) const;
};
struct ReleaseGraphExec {
  void operator()(CUgraphExec_st* graph) const;
};

/// Owned by the run. The methods with a rank or a stream are called by that rank's thread; the
/// ranks meet on the host between `begin` and `join`, `arrive` and `finish` or `launch`, `finish`
/// or `launch` and what follows.
class StepGraph {
 public:
  explicit StepGraph(std::vector<int> ordinals);

  /// Before the first capture, once per rank.
  void attach(int rank);

  /// Rank 0: what `stream` is given from now on is captured, not done.
  void begin(Stream stream);
  /// The other ranks, holding the turn: their stream takes part in the capture until `arrive`.
  void join(GpuOperations& backend);
  /// The other ranks: `finish`, or the next launch, waits for what `stream` has been given.
  void arrive(int rank, Stream stream);
  /// Rank 0: ends the capture; what was captured replaces an earlier graph. Throws Error with a way
  /// out when something in it cannot be part of a graph.
  void finish(Stream stream);
  /// Rank 0: gives a capture up that did not come to `finish`; does nothing after it.
  void abandon(Stream stream) noexcept;

  /// Rank 0: all ranks' work, in the order of `stream`. REQUIRES: finished.
  void launch(Stream stream);
  /// The other ranks: `stream` goes on after the launch.
  void follow(Stream stream) const;

  /// Holding the turn: what follows in a stream that has only waited comes after one node, which
  /// comes after all that was waited for.
  void gather(Stream stream) const;

  /// The right to issue during a capture.
  std::unique_lock<std::mutex> take_turn() { return std::unique_lock(turn_); }

 private:
  int ranks() const { return static_cast<int>(ordinals_.size()); }
  void wait_for_others(Stream stream) const;

  const std::vector<int> ordinals_;              // [rank]
  std::vector<std::unique_ptr<Event>> arrived_;  // [rank]
  std::unique_ptr<Event> begun_, done_;          // of rank 0
  std::unique_ptr<CUgraphExec_st, ReleaseGraphExec> graph_;
  bool capturing_ = false;
  std::mutex turn_;
};

}  // namespace lockstep::gpu
