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
// Where one process adds its ranks' gradients one after another (GPUs without sums by image), a
// process cannot add up its own ahead: the nodes are those of its ranks.
//
// Sums and messages are made on the host. What lies on a GPU passes through its rank's
// WorldStaging.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/cpu/sum_parts.h"
#include "lockstep/nn/parameter_store.h"
#include "lockstep/sync/sync_group.h"
#include "step/gradient_tree.h"
#include "step/world_staging.h"

namespace lockstep {

/// Of one process. Used by the threads of its ranks, which make the same calls in the same order;
/// `own` is a rank's place among them.
class WorldGradients {
 public:
  /// `group` is of several processes, and outlives the object.
  explicit WorldGradients(SyncGroup& group);
  /// Once all replicas are there. stores, losses: of this process's ranks; the losses are those
  /// that an update looks at (OptimizerShard::losses), and are not read where there is staging.
  /// in_tree: whether ranks' gradients are added in the tree (Backend::sums_by_image), not one by
  /// one.
  void join(std::vector<const ParameterStore*> stores, std::vector<const double*> losses,
            bool in_tree);
  /// Of a rank whose memory the host does not read. On the rank's thread, after `join`.
  void join(int own, WorldStaging& staging) { staging_[static_cast<std::size_t>(own)] = &staging; }
  /// Elements of the flat parameters that the rank owns: [begin, end).
  struct Owned {
    std::int64_t begin = 0, end = 0;
  };
  Owned owned(int own) const;

  /// When the rank's backward pass is done: waits for those of the process, sums, and exchanges.
  /// `tree`: the step's, of all ranks.
  void exchange(int own, const GradientTree& tree);
  /// The same where the gradients have been summed otherwise: only whether all losses are finite is
  /// exchanged. REQUIRES: staging.
  void exchange_losses(int own);
  /// What the rank's update of elements from `begin` on adds up, all of them owned by it, and in
  /// which order (OptimizerShard::grads and joins). Valid until the next exchange.
  void parts_from(int own, std::int64_t begin, std::vector<const float*>& parts) const;
  std::span<const int> joins() const { return joins_; }
  /// A double of the rank's device that is finite if all losses of the other processes are. With
  /// guards it is theirs: NaN for a loss, infinity for gradients alone (GradientCheck).
  const double* losses(int own) const;
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
  void add_nodes(int process, std::span<const GradientNode> ranks_nodes, std::int64_t leaves,
                 std::vector<GradientNode>& nodes) const;
  void reduce(int own);
  void trade();
  void bring_sums(int own);
  void send_weights();
  double own_losses() const;
  WorldStaging* staging(int own) const { return staging_[static_cast<std::size_t>(own)]; }
  const float* host_grads(std::size_t own, std::size_t part) const;
  const float* sum_from(const GradientNode& node, std::int64_t begin) const;
  const Share& own_share() const { return shares_[static_cast<std::size_t>(layout_.process)]; }
  std::span<const NodeSum> own_sums() const {
    return std::span(sums_).first(own_share().nodes.size());
  }
  bool is_own(int process) const { return process == layout_.process; }
  /// Of the ranks of this process. They hand in the step's tree where it is planned.
  using ProcessBarrier = Barrier<const GradientTree*, char>;
  ProcessBarrier& make_barrier(std::function<void(const GradientTree*)> work);
  static void meet(ProcessBarrier& barrier, const char* where, int own, const GradientTree* tree);

  SyncGroup& group_;
  const RankLayout& layout_;
  // Where the ranks of this process meet, and what one of them then does.
  ProcessBarrier& planning_;
  ProcessBarrier& trading_;
  ProcessBarrier& sharing_;
  const std::vector<int> peers_;
  std::vector<const ParameterStore*> stores_;  // [own]
  std::vector<const double*> own_losses_;
  std::vector<WorldStaging*> staging_;  // [own], null where the host reads the rank's memory
  bool in_tree_ = true;
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
  std::vector<float> own_weights_;                    // with staging, of this process's share
};

}  // namespace lockstep
