#pragma once
// The gradient exchange between processes, beside the one between the ranks of a process
// (gradient_exchange.h). Every process owns the parameters that its ranks own. In a step
//
//   reduce    each process sums what its ranks have of the others' parameters, up to the largest
//             nodes of the gradient tree that its images fill;
//   exchange  gives them to the owners;
//   (update   by the ranks, over their own nodes and those of the other processes;)
//   share     brings the new weights of every process to all others.
//
// Nodes are put together in the same tree as in one process, so that the sums are the same bits.

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/sum_parts.h"
#include "lockstep/nn/parameter_store.h"
#include "lockstep/sync/sync_group.h"
#include "parallel/gradient_tree.h"

namespace lockstep {

/// Of one process with replicas on the CPU. Used by the threads of its ranks, which make the same
/// calls in the same order; `own` is a rank's place among them.
class FleetGradients {
 public:
  /// `group` has a fleet, and outlives the object.
  explicit FleetGradients(SyncGroup& group);
  /// Once all replicas are there. stores, losses: of this process's ranks.
  void join(std::vector<const ParameterStore*> stores, std::vector<const double*> losses);

  /// When the rank's backward pass is done: waits for those of the process, sums, and exchanges.
  /// `tree`: the step's, of all ranks.
  void exchange(int own, const GradientTree& tree);
  /// What an update of elements from `begin` on adds up, all of them this process's, and in which
  /// order (OptimizerShard::grads and joins). Valid until the next exchange.
  void parts_from(std::int64_t begin, std::vector<const float*>& parts) const;
  std::span<const int> joins() const { return joins_; }
  /// A double that is finite if all losses of the other processes are.
  const double* losses() const { return &other_losses_; }
  /// When the rank has updated: waits for those of the process, and brings the weights that other
  /// processes have updated to this rank's.
  void share_weights(int own);

 private:
  /// Elements of the flat parameters that a process owns, and its part of the gradient tree.
  struct Share {
    std::int64_t begin = 0, end = 0;
    std::vector<GradientNode> nodes;  // of the process
    std::int64_t elements() const { return end - begin; }
  };
  /// One of this process's nodes as a sum over its ranks' nodes.
  struct NodeSum {
    std::vector<const float*> parts;
    std::vector<int> joins;
  };

  void plan(const GradientTree& tree);
  void plan_own_sums(const GradientTree& tree, std::span<const GradientNode> ranks_nodes);
  void plan_update(const GradientTree& tree);
  void reduce(int own);
  void trade();
  void send_weights();
  bool finite() const;
  const Share& own_share() const { return shares_[static_cast<std::size_t>(roster_.process)]; }
  std::span<const NodeSum> own_sums() const {
    return std::span(sums_).first(own_share().nodes.size());
  }
  bool is_own(int process) const { return process == roster_.process; }
  SyncAnswer meet(SyncMaster& master, const char* where, int own, const void* payload);

  SyncGroup& group_;
  const Roster& roster_;
  // Where the ranks of this process meet, and what rank 0 of it then does.
  SyncMaster& planning_;
  SyncMaster& trading_;
  SyncMaster& sharing_;
  const std::vector<int> peers_;
  std::vector<const ParameterStore*> stores_;  // [own]
  std::vector<const double*> own_losses_;
  double other_losses_ = 0;

  std::vector<Share> shares_;          // [process]
  std::vector<NodeSum> sums_;          // [node of this process], of the step with most nodes
  std::vector<GradientNode> updated_;  // the nodes that an update adds up
  std::vector<int> joins_;             // of them
  std::vector<GradientNode> scratch_;
  std::vector<Bytes> out_;                            // [process] finite or not, [node, elements]
  std::vector<Bytes> in_;                             // [process] the same of the peers
  std::vector<std::span<const std::byte>> messages_;  // [process]
  std::vector<Bytes> weights_;                        // [process]
};

}  // namespace lockstep
