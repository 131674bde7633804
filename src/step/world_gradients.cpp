#include "step/world_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {
namespace {

/// Before the nodes: one double. It keeps the floats behind it aligned.
constexpr std::size_t kHeader = sizeof(double);

float* floats_of(Bytes& bytes) { return reinterpret_cast<float*>(bytes.data() + kHeader); }

}  // namespace

WorldGradients::WorldGradients(SyncGroup& group)
    : group_(group),
      layout_(group.rank_layout()),
      planning_(make_barrier([this](const GradientTree* tree) { plan(*tree); })),
      trading_(make_barrier([this](const GradientTree*) { trade(); })),
      sharing_(make_barrier([this](const GradientTree*) { send_weights(); })),
      peers_(layout_.peers()),
      shares_(static_cast<std::size_t>(layout_.processes())),
      out_(shares_.size()),
      in_(shares_.size()),
      messages_(shares_.size()),
      weights_(shares_.size()) {}

void WorldGradients::join(std::vector<const ParameterStore*> stores,
                          std::vector<const double*> losses, bool in_tree) {
  stores_ = std::move(stores);
  own_losses_ = std::move(losses);
  staging_.assign(stores_.size(), nullptr);
  for (Bytes& out : out_) out.resize(kHeader);
  in_tree_ = in_tree;
  const std::int64_t elements = stores_.front()->elements();
  for (std::size_t process = 0; process < shares_.size(); ++process) {
    shares_[process].begin = owned_begin(elements, layout_.first[process], layout_.ranks());
    shares_[process].end = owned_begin(elements, layout_.first[process + 1], layout_.ranks());
  }
}

WorldGradients::ProcessBarrier& WorldGradients::make_barrier(
    std::function<void(const GradientTree*)> work) {
  return group_.make_barrier<const GradientTree*, char>(
      [work = std::move(work)](const SyncCall&, auto trees, auto) { work(trees.front()); });
}

void WorldGradients::meet(ProcessBarrier& barrier, const char* where, int own,
                          const GradientTree* tree) {
  barrier.exchange(own, {where, Direction::kOther, 0, 0}, tree);
}

WorldGradients::Owned WorldGradients::owned(int own) const {
  const std::int64_t elements = stores_.front()->elements();
  const int rank = layout_.first_rank() + own;
  return {owned_begin(elements, rank, layout_.ranks()),
          owned_begin(elements, rank + 1, layout_.ranks())};
}

const double* WorldGradients::losses(int own) const {
  return staging(own) != nullptr ? staging(own)->other_losses() : &other_losses_;
}

void WorldGradients::exchange(int own, const GradientTree& tree) {
  if (WorldStaging* const staged = staging(own)) {
    staged->fetch_gradients(tree.nodes_of(layout_.first_rank() + own).size());
  }
  meet(planning_, "gradients of the process", own, &tree);
  reduce(own);
  meet(trading_, "gradients of all processes", own, nullptr);
  if (staging(own) != nullptr) bring_sums(own);
}

void WorldGradients::exchange_losses(int own) {
  staging(own)->fetch_gradients(0);
  meet(trading_, "losses of all processes", own, nullptr);
  staging(own)->bring_losses(other_losses_);
}

void WorldGradients::share_weights(int own) {
  WorldStaging* const staged = staging(own);
  if (staged != nullptr) {
    staged->fetch_weights(own_weights_.data() + (owned(own).begin - own_share().begin));
  }
  meet(sharing_, "weights of all processes", own, nullptr);
  float* values = stores_[static_cast<std::size_t>(own)]->values();
  for (const int peer : peers_) {
    const Share& share = shares_[static_cast<std::size_t>(peer)];
    const Bytes& weights = weights_[static_cast<std::size_t>(peer)];
    if (weights.empty()) continue;
    if (staged == nullptr) {
      std::memcpy(values + share.begin, weights.data(), weights.size());
    } else {
      staged->bring_weights(share.begin, {reinterpret_cast<const float*>(weights.data()),
                                          weights.size() / sizeof(float)});
    }
  }
}

// --- one thread, while the others wait ---

void WorldGradients::plan(const GradientTree& tree) {
  std::span<const GradientNode> left = tree.nodes();
  for (int process = 0; process < layout_.processes(); ++process) {
    const auto others = std::find_if(left.begin(), left.end(), [&](const GradientNode& node) {
      return layout_.process_of(node.rank) != process;
    });
    const std::span<const GradientNode> own(left.begin(), others);
    left = std::span<const GradientNode>(others, left.end());
    Share& share = shares_[static_cast<std::size_t>(process)];
    share.nodes.clear();
    if (!own.empty()) add_nodes(process, own, tree.leaves(), share.nodes);
    if (is_own(process)) plan_own_sums(tree, own);
  }
  plan_update(tree);
  if (staging_.front() != nullptr) {
    own_weights_.resize(static_cast<std::size_t>(own_share().elements()));
  }
  for (const int peer : peers_) {
    const auto floats =
        static_cast<std::size_t>(shares_[static_cast<std::size_t>(peer)].elements());
    out_[static_cast<std::size_t>(peer)].resize(kHeader +
                                                own_sums().size() * floats * sizeof(float));
  }
}

/// What the process adds up: as much of the tree as its ranks' nodes fill.
void WorldGradients::add_nodes(int process, std::span<const GradientNode> ranks_nodes,
                               std::int64_t leaves, std::vector<GradientNode>& nodes) const {
  if (in_tree_) {
    add_largest_nodes(process, ranks_nodes.front().begin, ranks_nodes.back().end, leaves, nodes);
    return;
  }
  for (const GradientNode& node : ranks_nodes) {
    nodes.push_back({node.begin, node.end, process, nodes.size()});
  }
}

void WorldGradients::plan_own_sums(const GradientTree& tree,
                                   std::span<const GradientNode> ranks_nodes) {
  const std::vector<GradientNode>& nodes = own_share().nodes;
  sums_.resize(std::max(sums_.size(), nodes.size()));
  auto next = ranks_nodes.begin();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeSum& sum = sums_[i];
    sum.parts.clear();
    const auto first = next;
    for (; next != ranks_nodes.end() && next->begin < nodes[i].end; ++next) {
      const auto own = static_cast<std::size_t>(next->rank - layout_.first_rank());
      sum.parts.push_back(host_grads(own, next->part));
    }
    plan_joins({first, next}, tree.leaves(), sum.joins, scratch_);
  }
}

// The ranks' own nodes, which lie in this process's memory, and sums of the others'.
void WorldGradients::plan_update(const GradientTree& tree) {
  updated_.clear();
  for (int process = 0; process < layout_.processes(); ++process) {
    if (is_own(process)) {
      std::copy_if(tree.nodes().begin(), tree.nodes().end(), std::back_inserter(updated_),
                   [&](const GradientNode& node) { return is_own(layout_.process_of(node.rank)); });
      continue;
    }
    const std::vector<GradientNode>& nodes = shares_[static_cast<std::size_t>(process)].nodes;
    for (GradientNode node : nodes) {
      node.rank = layout_.first[static_cast<std::size_t>(process)];
      updated_.push_back(node);
    }
  }
  plan_joins(updated_, tree.leaves(), joins_, scratch_);
}

const float* WorldGradients::host_grads(std::size_t own, std::size_t part) const {
  const WorldStaging* const staged = staging_[own];
  return staged != nullptr ? staged->grads_of_part(part) : stores_[own]->grads_of_part(part);
}

/// 0, or a number that is not finite.
double WorldGradients::own_losses() const {
  double sum = 0;
  if (staging_.front() == nullptr) {
    for (const double* loss : own_losses_) sum += std::isfinite(*loss) ? 0 : *loss;
  }
  for (const WorldStaging* staged : staging_) {
    if (staged != nullptr) sum += staged->losses();
  }
  return sum;
}

void WorldGradients::trade() {
  const double loss = own_losses();
  for (const int peer : peers_) {
    Bytes& out = out_[static_cast<std::size_t>(peer)];
    std::memcpy(out.data(), &loss, sizeof loss);
    messages_[static_cast<std::size_t>(peer)] = out;
  }
  group_.exchange(kStepChannel, peers_, messages_, in_);
  other_losses_ = 0;
  for (const int peer : peers_) {
    const Bytes& in = in_[static_cast<std::size_t>(peer)];
    const std::size_t nodes = shares_[static_cast<std::size_t>(peer)].nodes.size();
    const std::size_t expected =
        kHeader + nodes * static_cast<std::size_t>(own_share().elements()) * sizeof(float);
    LOCKSTEP_CHECK(in.size() == expected, layout_.describe(peer), " sent ", in.size(),
                   " bytes of gradients, expected ", expected);
    double theirs = 0;
    std::memcpy(&theirs, in.data(), sizeof theirs);
    other_losses_ += theirs;
  }
}

void WorldGradients::send_weights() {
  const Share& own = own_share();
  const float* const first =
      own_weights_.empty() ? stores_.front()->values() + own.begin : own_weights_.data();
  const std::span<const float> values(first, static_cast<std::size_t>(own.elements()));
  for (const int peer : peers_) {
    messages_[static_cast<std::size_t>(peer)] = std::as_bytes(values);
  }
  group_.exchange(kStepChannel, peers_, messages_, weights_);
  for (const int peer : peers_) {
    const auto expected =
        static_cast<std::size_t>(shares_[static_cast<std::size_t>(peer)].elements()) *
        sizeof(float);
    LOCKSTEP_CHECK(weights_[static_cast<std::size_t>(peer)].size() == expected,
                   layout_.describe(peer), " sent ",
                   weights_[static_cast<std::size_t>(peer)].size(), " bytes of weights, expected ",
                   expected);
  }
}

// --- every rank's thread ---

// Each rank sums its piece of every node.
void WorldGradients::reduce(int own) {
  const auto ranks = static_cast<std::int64_t>(stores_.size());
  float sums[kMaxWaitingSums][kNormBlock];
  for (const int peer : peers_) {
    const Share& share = shares_[static_cast<std::size_t>(peer)];
    const std::int64_t begin = share.elements() * own / ranks;
    const std::int64_t end = share.elements() * (own + 1) / ranks;
    float* to = floats_of(out_[static_cast<std::size_t>(peer)]);
    for (const NodeSum& node : own_sums()) {
      for (std::int64_t i = begin; i < end; i += kNormBlock) {
        const std::int64_t count = std::min<std::int64_t>(kNormBlock, end - i);
        sum_parts(node.parts, node.joins, share.begin + i, count, sums);
        std::copy_n(sums[0], count, to + i);
      }
      to += share.elements();
    }
  }
}

/// A node of another process, from an element of this process's on.
const float* WorldGradients::sum_from(const GradientNode& node, std::int64_t begin) const {
  const Share& own = own_share();
  const Bytes& in = in_[static_cast<std::size_t>(layout_.process_of(node.rank))];
  return reinterpret_cast<const float*>(in.data() + kHeader) +
         static_cast<std::int64_t>(node.part) * own.elements() + begin - own.begin;
}

void WorldGradients::bring_sums(int own) {
  const auto of_others = [this](const GradientNode& node) {
    return !is_own(layout_.process_of(node.rank));
  };
  WorldStaging& staged = *staging(own);
  staged.reserve_sums(
      static_cast<std::size_t>(std::count_if(updated_.begin(), updated_.end(), of_others)));
  for (std::size_t brought = 0; const GradientNode& node : updated_) {
    if (of_others(node)) staged.bring_sum(brought++, sum_from(node, owned(own).begin));
  }
  staged.bring_losses(other_losses_);
}

void WorldGradients::parts_from(int own, std::int64_t begin,
                                std::vector<const float*>& parts) const {
  std::size_t brought = 0;
  for (const GradientNode& node : updated_) {
    if (is_own(layout_.process_of(node.rank))) {
      const auto place = static_cast<std::size_t>(node.rank - layout_.first_rank());
      parts.push_back(stores_[place]->grads_of_part(node.part) + begin);
    } else if (const WorldStaging* const staged = staging(own)) {
      parts.push_back(staged->sum(brought++, begin));
    } else {
      parts.push_back(sum_from(node, begin));
    }
  }
}

}  // namespace lockstep
