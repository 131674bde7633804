#include "step/world_reducer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/sum_parts.h"
#include "lockstep/core/check.h"
#include "step/parameter_ranges.h"

namespace lockstep {
namespace {

/// Before the nodes: one double. It keeps the floats behind it aligned.
constexpr std::size_t kHeader = sizeof(double);

std::size_t bytes_of(std::size_t nodes, const ElementRange& range) {
  return kHeader + nodes * static_cast<std::size_t>(range.size()) * sizeof(float);
}

float* floats_of(Bytes& bytes) { return reinterpret_cast<float*>(bytes.data() + kHeader); }

}  // namespace

// --- the plan ---

WorldPlan::WorldPlan(const RankLayout& layout, std::int64_t elements, bool in_tree)
    : layout_(layout),
      elements_(elements),
      in_tree_(in_tree),
      shares_(static_cast<std::size_t>(layout.processes())) {
  for (int process = 0; process < layout_.processes(); ++process) {
    shares_[static_cast<std::size_t>(process)].range = owned_by_process(elements, process, layout_);
  }
}

void WorldPlan::make(const GradientTree& tree, std::span<HostMirror* const> mirrors) {
  std::span<const GradientNode> left = tree.nodes();
  for (int process = 0; process < layout_.processes(); ++process) {
    const auto others = std::find_if(left.begin(), left.end(), [&](const GradientNode& node) {
      return layout_.process_of(node.rank) != process;
    });
    const std::span<const GradientNode> own(left.begin(), others);
    left = std::span<const GradientNode>(others, left.end());
    add_nodes(process, own, tree.leaves());
    if (process == layout_.process) plan_own_sums(tree, own, mirrors);
  }
  plan_update(tree);
}

/// What the process adds up: as much of the tree as its ranks' nodes fill.
void WorldPlan::add_nodes(int process, std::span<const GradientNode> ranks_nodes,
                          std::int64_t leaves) {
  std::vector<GradientNode>& nodes = shares_[static_cast<std::size_t>(process)].nodes;
  nodes.clear();
  if (ranks_nodes.empty()) return;
  if (in_tree_) {
    add_largest_nodes(process, ranks_nodes.front().begin, ranks_nodes.back().end, leaves, nodes);
    return;
  }
  for (const GradientNode& node : ranks_nodes) {
    nodes.push_back({node.begin, node.end, process, nodes.size()});
  }
}

void WorldPlan::plan_own_sums(const GradientTree& tree, std::span<const GradientNode> ranks_nodes,
                              std::span<HostMirror* const> mirrors) {
  const std::vector<GradientNode>& nodes = share(layout_.process).nodes;
  sums_.resize(std::max(sums_.size(), nodes.size()));
  auto next = ranks_nodes.begin();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeSum& sum = sums_[i];
    sum.parts.clear();
    const auto first = next;
    for (; next != ranks_nodes.end() && next->begin < nodes[i].end; ++next) {
      const auto own = static_cast<std::size_t>(next->rank - layout_.first_rank());
      sum.parts.push_back(mirrors[own]->grads_of_part(next->part));
    }
    plan_joins({first, next}, tree.leaves(), sum.joins, scratch_);
  }
}

void WorldPlan::plan_update(const GradientTree& tree) {
  updated_.clear();
  for (int process = 0; process < layout_.processes(); ++process) {
    if (process == layout_.process) {
      std::copy_if(tree.nodes().begin(), tree.nodes().end(), std::back_inserter(updated_),
                   [&](const GradientNode& node) { return is_own(node); });
      continue;
    }
    for (GradientNode node : share(process).nodes) {
      node.rank = layout_.first[static_cast<std::size_t>(process)];
      updated_.push_back(node);
    }
  }
  plan_joins(updated_, tree.leaves(), joins_, scratch_);
}

// --- the exchange ---

WorldGradients::WorldGradients(SyncGroup& group, const ParameterStore& store,
                               const Backend& backend)
    : group_(group),
      layout_(group.rank_layout()),
      plan_(layout_, store.elements(), backend.sums_by_image()),
      planning_(make_barrier([this](const GradientTree* tree) { make_plan(*tree); })),
      sums_trade_(make_barrier([this](const GradientTree*) { trade_sums(); })),
      weights_trade_(make_barrier([this](const GradientTree*) { trade_weights(); })),
      peers_(layout_.peers()),
      mirrors_(static_cast<std::size_t>(layout_.own_ranks())),
      out_(static_cast<std::size_t>(layout_.processes()), Bytes(kHeader)),
      in_(out_.size()),
      messages_(out_.size()),
      weights_(out_.size()) {}

WorldGradients::ProcessBarrier& WorldGradients::make_barrier(
    std::function<void(const GradientTree*)> work) {
  return group_.make_barrier<const GradientTree*, char>(
      [work = std::move(work)](const SyncCall&, auto trees, auto) { work(trees.front()); });
}

void WorldGradients::meet(ProcessBarrier& barrier, const char* where, int own,
                          const GradientTree* tree) {
  barrier.exchange(own, {where, Direction::kOther, 0, 0}, tree);
}

ElementRange WorldGradients::owned(int own) const {
  return plan_.owned(layout_.first_rank() + own);
}

void WorldGradients::exchange(int own, const GradientTree& tree) {
  mirror(own).fetch_gradients(tree.nodes_of(layout_.first_rank() + own).size());
  meet(planning_, "gradients of the process", own, &tree);
  sum_nodes(own);
  meet(sums_trade_, "gradients of all processes", own);
  mirror(own).bring_indicator(others_indicator_);
}

void WorldGradients::exchange_indicators(int own) {
  mirror(own).fetch_gradients(0);
  meet(sums_trade_, "losses of all processes", own);
  mirror(own).bring_indicator(others_indicator_);
}

// All of them have the weights of the whole process by now.
void WorldGradients::publish(int own) {
  if (own == 0) own_weights_ = mirror(own).fetch_weights(plan_.range(layout_.process));
  meet(weights_trade_, "weights of all processes", own);
  for (const int peer : peers_) {
    const Bytes& weights = weights_[static_cast<std::size_t>(peer)];
    if (weights.empty()) continue;
    mirror(own).bring_weights(
        plan_.range(peer).begin,
        {reinterpret_cast<const float*>(weights.data()), weights.size() / sizeof(float)});
  }
}

// --- one thread, while the others wait ---

void WorldGradients::make_plan(const GradientTree& tree) {
  plan_.make(tree, mirrors_);
  for (const int peer : peers_) {
    out_[static_cast<std::size_t>(peer)].resize(
        bytes_of(plan_.own_sums().size(), plan_.range(peer)));
  }
}

void WorldGradients::trade_sums() {
  double indicator = 0;
  for (const HostMirror* mirror : mirrors_) indicator += mirror->indicator();
  for (const int peer : peers_) {
    Bytes& out = out_[static_cast<std::size_t>(peer)];
    std::memcpy(out.data(), &indicator, sizeof indicator);
    messages_[static_cast<std::size_t>(peer)] = out;
  }
  group_.exchange(kStepChannel, peers_, messages_, in_);
  others_indicator_ = 0;
  for (const int peer : peers_) {
    const Bytes& in = in_[static_cast<std::size_t>(peer)];
    const std::size_t expected = bytes_of(plan_.nodes_of(peer), plan_.range(layout_.process));
    LOCKSTEP_CHECK(in.size() == expected, layout_.describe(peer), " sent ", in.size(),
                   " bytes of gradients, expected ", expected);
    double theirs = 0;
    std::memcpy(&theirs, in.data(), sizeof theirs);
    others_indicator_ += theirs;
  }
}

void WorldGradients::trade_weights() {
  const std::span<const float> own(own_weights_,
                                   static_cast<std::size_t>(plan_.range(layout_.process).size()));
  for (const int peer : peers_) messages_[static_cast<std::size_t>(peer)] = std::as_bytes(own);
  group_.exchange(kStepChannel, peers_, messages_, weights_);
  for (const int peer : peers_) {
    const std::size_t sent = weights_[static_cast<std::size_t>(peer)].size();
    const std::size_t expected = static_cast<std::size_t>(plan_.range(peer).size()) * sizeof(float);
    LOCKSTEP_CHECK(sent == expected, layout_.describe(peer), " sent ", sent,
                   " bytes of weights, expected ", expected);
  }
}

// --- every rank's thread ---

// Each rank sums its piece of every node.
void WorldGradients::sum_nodes(int own) {
  const auto ranks = static_cast<std::int64_t>(mirrors_.size());
  float sums[kMaxWaitingSums][kNormBlock];
  for (const int peer : peers_) {
    const ElementRange& range = plan_.range(peer);
    const std::int64_t begin = range.size() * own / ranks;
    const std::int64_t end = range.size() * (own + 1) / ranks;
    float* to = floats_of(out_[static_cast<std::size_t>(peer)]);
    for (const WorldPlan::NodeSum& node : plan_.own_sums()) {
      for (std::int64_t i = begin; i < end; i += kNormBlock) {
        const std::int64_t count = std::min<std::int64_t>(kNormBlock, end - i);
        sum_parts(node.parts, node.joins, range.begin + i, count, sums);
        std::copy_n(sums[0], count, to + i);
      }
      to += range.size();
    }
  }
}

const float* WorldGradients::sum_of(const GradientNode& node, int own) const {
  if (plan_.is_own(node)) return nullptr;
  const ElementRange& range = plan_.range(layout_.process);
  const Bytes& in = in_[static_cast<std::size_t>(layout_.process_of(node.rank))];
  return reinterpret_cast<const float*>(in.data() + kHeader) +
         static_cast<std::int64_t>(node.part) * range.size() + owned(own).begin - range.begin;
}

// --- a rank's reducers ---

ShardedWorldReducer::ShardedWorldReducer(const GradientRank& rank, WorldGradients& world,
                                         std::unique_ptr<HostMirror> mirror)
    : ShardedReducer(rank),
      world_(world),
      own_(rank.rank - rank.first),
      mirror_(std::move(mirror)) {
  world_.join(own_, *mirror_);
}

void ShardedWorldReducer::reduce(LossScaler& scaler) {
  ShardedReducer::reduce(scaler);
  world_.exchange(own_, tree());
  brought_.clear();
  for (const GradientNode& node : world_.plan().updated()) {
    if (const float* const sum = world_.sum_of(node, own_)) brought_.push_back(sum);
  }
  mirror_->bring_sums(brought_, world_.owned(own_).size());
}

GradientSum ShardedWorldReducer::sum(std::int64_t begin) {
  addends_.clear();
  auto brought = brought_.begin();
  for (const GradientNode& node : world_.plan().updated()) {
    const bool elsewhere = world_.sum_of(node, own_) != nullptr;
    addends_.push_back(elsewhere ? *brought++ + (begin - world_.owned(own_).begin)
                                 : grads_of(node) + begin);
  }
  return {addends_, in_tree() ? world_.plan().joins() : std::span<const int>()};
}

void ShardedWorldReducer::publish() {
  ShardedReducer::publish();
  world_.publish(own_);
}

BucketedWorldReducer::BucketedWorldReducer(const GradientRank& rank, AllReduce& all_reduce,
                                           std::vector<GradientBucket> buckets,
                                           WorldGradients& world,
                                           std::unique_ptr<HostMirror> mirror)
    : BucketedReducer(rank, all_reduce, std::move(buckets)),
      world_(world),
      own_(rank.rank - rank.first),
      mirror_(std::move(mirror)) {
  world_.join(own_, *mirror_);
}

void BucketedWorldReducer::reduce(LossScaler& scaler) {
  BucketedReducer::reduce(scaler);
  world_.exchange_indicators(own_);
}

}  // namespace lockstep
