#pragma once
// Reducers of several processes, beside what the ranks of a process do (gradient_reducer.h). Every
// process owns the parameters that its ranks own. In a step
//
//   reduce    each process sums what its ranks have of the others' parameters, up to the largest
//             nodes of the gradient tree that its images fill, and gives them to the owners;
//   (update   by the ranks, over their own nodes and those of the other processes;)
//   publish   brings the new weights of every process to all others.
//
// Nodes are put together in the same tree as in one process, so that the sums are the same bits.
// Where one process adds its ranks' gradients one after another (GPUs without sums by image), a
// process cannot add up its own ahead: the nodes are those of its ranks.
//
// Sums and messages are made on the host, of what the ranks' mirrors have there.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/sync/sync_group.h"
#include "step/bucketed_reducer.h"
#include "step/gradient_reducer.h"
#include "step/gradient_tree.h"
#include "step/host_mirror.h"

namespace lockstep {

/// Who adds up what in a step: which parameters each process owns, and which nodes of the gradient
/// tree it adds up before it shows them to the others.
class WorldPlan {
 public:
  /// One of this process's nodes as a sum over its ranks' nodes, on the host.
  struct NodeSum {
    std::vector<const float*> parts;
    std::vector<int> joins;
  };

  /// `in_tree`: whether ranks' gradients are added in the tree (Backend::sums_by_image), not one by
  /// one. `layout` outlives the object.
  WorldPlan(const RankLayout& layout, std::int64_t elements, bool in_tree);

  /// Elements of the flat parameters that a rank owns, or a process.
  ElementRange owned(int rank) const { return owned_range(elements_, rank, layout_.ranks()); }
  const ElementRange& range(int process) const { return share(process).range; }

  /// For a step of this tree, whose gradients in this process the mirrors [own rank] have.
  void make(const GradientTree& tree, std::span<HostMirror* const> mirrors);
  /// How many nodes a process adds up ahead.
  std::size_t nodes_of(int process) const { return share(process).nodes.size(); }
  /// The sums of this process's nodes.
  std::span<const NodeSum> own_sums() const {
    return std::span(sums_).first(nodes_of(layout_.process));
  }
  bool is_own(const GradientNode& node) const {
    return layout_.process_of(node.rank) == layout_.process;
  }
  /// What an update adds up, and how (OptimizerShard::joins): the ranks' own nodes, which lie in
  /// this process's memory, and sums of the others'.
  std::span<const GradientNode> updated() const { return updated_; }
  std::span<const int> joins() const { return joins_; }

 private:
  struct Share {
    ElementRange range;
    std::vector<GradientNode> nodes;
  };

  const Share& share(int process) const { return shares_[static_cast<std::size_t>(process)]; }
  void add_nodes(int process, std::span<const GradientNode> ranks_nodes, std::int64_t leaves);
  void plan_own_sums(const GradientTree& tree, std::span<const GradientNode> ranks_nodes,
                     std::span<HostMirror* const> mirrors);
  void plan_update(const GradientTree& tree);

  const RankLayout& layout_;
  const std::int64_t elements_;
  const bool in_tree_;
  std::vector<Share> shares_;  // [process]
  std::vector<NodeSum> sums_;  // [node of this process], of the step with most nodes
  std::vector<GradientNode> updated_;
  std::vector<int> joins_;  // [node of `updated_`]
  std::vector<GradientNode> scratch_;
};

/// What the ranks of a process do together: one end of the exchange between processes. Used by
/// their threads, which make the same calls in the same order; `own` is a rank's number among them.
class WorldGradients {
 public:
  /// `group`, of several processes, outlives the object; store and backend are of any rank.
  WorldGradients(SyncGroup& group, const ParameterStore& store, const Backend& backend);
  /// Before the first exchange, by each rank; the mirror outlives the exchanges.
  void join(int own, HostMirror& mirror) { mirrors_[static_cast<std::size_t>(own)] = &mirror; }

  /// Which of the flat parameters the rank owns.
  ElementRange owned(int own) const;

  /// To be called when the rank's backward pass is done. Waits for the other ranks of the process,
  /// sums, and exchanges the sums with other processes. `tree`: the step's, of all ranks.
  void exchange(int own, const GradientTree& tree);
  /// The same where the gradients have been summed otherwise: it exchanges only whether all losses
  /// are finite.
  void exchange_indicators(int own);
  /// The plan of the last exchange.
  const WorldPlan& plan() const { return plan_; }
  /// Returns the sum of a node of another process, from the first element on that the rank owns;
  /// null for a node of this process. Valid until the next exchange.
  const float* sum_of(const GradientNode& node, int own) const;
  /// To be called when the rank has updated its weights. Waits for the other ranks of the process,
  /// and copies the weights that other processes have updated to this rank's device.
  void publish(int own);

 private:
  /// Where the ranks of this process meet. They hand in the step's tree where it is planned.
  using ProcessBarrier = Barrier<const GradientTree*, char>;
  ProcessBarrier& make_barrier(std::function<void(const GradientTree*)> work);
  static void meet(ProcessBarrier& barrier, const char* where, int own,
                   const GradientTree* tree = nullptr);
  void make_plan(const GradientTree& tree);
  void sum_nodes(int own);
  void trade_sums();
  void trade_weights();
  HostMirror& mirror(int own) const { return *mirrors_[static_cast<std::size_t>(own)]; }

  SyncGroup& group_;
  const RankLayout& layout_;
  WorldPlan plan_;
  // Where the ranks of this process meet, and what one of them then does.
  ProcessBarrier& planning_;
  ProcessBarrier& sums_trade_;
  ProcessBarrier& weights_trade_;
  const std::vector<int> peers_;
  std::vector<HostMirror*> mirrors_;    // [own]
  const float* own_weights_ = nullptr;  // that the process owns, on the host
  double others_indicator_ = 0;
  std::vector<Bytes> out_;                            // [process] indicator, [node, elements]
  std::vector<Bytes> in_;                             // [process] the same of the peers
  std::vector<std::span<const std::byte>> messages_;  // [process]
  std::vector<Bytes> weights_;                        // [process]
};

/// Every rank of every process owns a share of the parameters.
class ShardedWorldReducer final : public ShardedReducer {
 public:
  ShardedWorldReducer(const GradientRank& rank, WorldGradients& world,
                      std::unique_ptr<HostMirror> mirror);

  void reduce(LossScaler& scaler) override;
  GradientSum sum(std::int64_t begin) override;
  void publish() override;

 private:
  WorldGradients& world_;
  const int own_;  // among the ranks of its process
  const std::unique_ptr<HostMirror> mirror_;
  std::vector<const float*> addends_;  // [node that an update adds up]
  std::vector<const float*> brought_;  // of them those of other processes, on the device
};

/// All-reduces are over all processes by themselves: whether losses are finite is left to say.
class BucketedWorldReducer final : public BucketedReducer {
 public:
  BucketedWorldReducer(const GradientRank& rank, AllReduce& all_reduce,
                       std::vector<GradientBucket> buckets, WorldGradients& world,
                       std::unique_ptr<HostMirror> mirror);

  void reduce(LossScaler& scaler) override;

 private:
  WorldGradients& world_;
  const int own_;  // among the ranks of its process
  const std::unique_ptr<HostMirror> mirror_;
};

}  // namespace lockstep
