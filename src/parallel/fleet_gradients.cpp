#include "parallel/fleet_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/core/check.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {
namespace {

/// Before the nodes: one double. It keeps the floats behind it aligned.
constexpr std::size_t kHeader = sizeof(double);

float* floats_of(Bytes& bytes) { return reinterpret_cast<float*>(bytes.data() + kHeader); }

}  // namespace

FleetGradients::FleetGradients(SyncGroup& group)
    : group_(group),
      roster_(group.roster()),
      planning_(group.make_master([this](auto messages, auto) {
        plan(*static_cast<const GradientTree*>(messages.front().payload));
      })),
      trading_(group.make_master([this](auto, auto) { trade(); })),
      sharing_(group.make_master([this](auto, auto) { send_weights(); })),
      peers_(roster_.peers()),
      shares_(static_cast<std::size_t>(roster_.processes())),
      out_(shares_.size()),
      in_(shares_.size()),
      messages_(shares_.size()),
      weights_(shares_.size()) {}

void FleetGradients::join(std::vector<const ParameterStore*> stores,
                          std::vector<const double*> losses) {
  stores_ = std::move(stores);
  own_losses_ = std::move(losses);
  const std::int64_t elements = stores_.front()->elements();
  for (std::size_t process = 0; process < shares_.size(); ++process) {
    shares_[process].begin = owned_begin(elements, roster_.first[process], roster_.ranks());
    shares_[process].end = owned_begin(elements, roster_.first[process + 1], roster_.ranks());
  }
}

SyncAnswer FleetGradients::meet(SyncMaster& master, const char* where, int own,
                                const void* payload) {
  return master.exchange(own, {{where, Direction::kOther, 0, 0}, 0, payload});
}

void FleetGradients::exchange(int own, const GradientTree& tree) {
  meet(planning_, "gradients of the process", own, &tree);
  reduce(own);
  meet(trading_, "gradients of all processes", own, nullptr);
}

void FleetGradients::share_weights(int own) {
  meet(sharing_, "weights of all processes", own, nullptr);
  float* values = stores_[static_cast<std::size_t>(own)]->values();
  for (const int peer : peers_) {
    const Share& share = shares_[static_cast<std::size_t>(peer)];
    const Bytes& weights = weights_[static_cast<std::size_t>(peer)];
    if (!weights.empty()) std::memcpy(values + share.begin, weights.data(), weights.size());
  }
}

// --- rank 0's thread, while the others wait ---

void FleetGradients::plan(const GradientTree& tree) {
  std::span<const GradientNode> left = tree.nodes();
  for (int process = 0; process < roster_.processes(); ++process) {
    const auto others = std::find_if(left.begin(), left.end(), [&](const GradientNode& node) {
      return roster_.process_of(node.rank) != process;
    });
    const std::span<const GradientNode> own(left.begin(), others);
    left = std::span<const GradientNode>(others, left.end());
    Share& share = shares_[static_cast<std::size_t>(process)];
    share.nodes.clear();
    if (!own.empty()) {
      add_largest_nodes(process, own.front().begin, own.back().end, tree.leaves(), share.nodes);
    }
    if (is_own(process)) plan_own_sums(tree, own);
  }
  plan_update(tree);
  for (const int peer : peers_) {
    const auto floats =
        static_cast<std::size_t>(shares_[static_cast<std::size_t>(peer)].elements());
    out_[static_cast<std::size_t>(peer)].resize(kHeader +
                                                own_sums().size() * floats * sizeof(float));
  }
}

void FleetGradients::plan_own_sums(const GradientTree& tree,
                                   std::span<const GradientNode> ranks_nodes) {
  const std::vector<GradientNode>& nodes = own_share().nodes;
  sums_.resize(std::max(sums_.size(), nodes.size()));
  auto next = ranks_nodes.begin();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    NodeSum& sum = sums_[i];
    sum.parts.clear();
    const auto first = next;
    for (; next != ranks_nodes.end() && next->begin < nodes[i].end; ++next) {
      const auto own = static_cast<std::size_t>(next->rank - roster_.first_rank());
      sum.parts.push_back(stores_[own]->grads_of_part(next->part));
    }
    plan_joins({first, next}, tree.leaves(), sum.joins, scratch_);
  }
}

// The ranks' own nodes, which lie in this process's memory, and sums of the others'.
void FleetGradients::plan_update(const GradientTree& tree) {
  updated_.clear();
  for (int process = 0; process < roster_.processes(); ++process) {
    if (is_own(process)) {
      std::copy_if(tree.nodes().begin(), tree.nodes().end(), std::back_inserter(updated_),
                   [&](const GradientNode& node) { return is_own(roster_.process_of(node.rank)); });
      continue;
    }
    const std::vector<GradientNode>& nodes = shares_[static_cast<std::size_t>(process)].nodes;
    for (GradientNode node : nodes) {
      node.rank = roster_.first[static_cast<std::size_t>(process)];
      updated_.push_back(node);
    }
  }
  plan_joins(updated_, tree.leaves(), joins_, scratch_);
}

bool FleetGradients::finite() const {
  return std::all_of(own_losses_.begin(), own_losses_.end(),
                     [](const double* loss) { return std::isfinite(*loss); });
}

void FleetGradients::trade() {
  const double loss = finite() ? 0.0 : std::numeric_limits<double>::quiet_NaN();
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
    LOCKSTEP_CHECK(in.size() == expected, roster_.describe(peer), " sent ", in.size(),
                   " bytes of gradients, expected ", expected);
    double theirs = 0;
    std::memcpy(&theirs, in.data(), sizeof theirs);
    other_losses_ += theirs;
  }
}

void FleetGradients::send_weights() {
  const Share& own = own_share();
  const std::span<const float> values(stores_.front()->values() + own.begin,
                                      static_cast<std::size_t>(own.elements()));
  for (const int peer : peers_) {
    messages_[static_cast<std::size_t>(peer)] = std::as_bytes(values);
  }
  group_.exchange(kStepChannel, peers_, messages_, weights_);
  for (const int peer : peers_) {
    const auto expected =
        static_cast<std::size_t>(shares_[static_cast<std::size_t>(peer)].elements()) *
        sizeof(float);
    LOCKSTEP_CHECK(weights_[static_cast<std::size_t>(peer)].size() == expected,
                   roster_.describe(peer), " sent ",
                   weights_[static_cast<std::size_t>(peer)].size(), " bytes of weights, expected ",
                   expected);
  }
}

// --- every rank's thread ---

// Each rank sums its piece of every node.
void FleetGradients::reduce(int own) {
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

void FleetGradients::parts_from(std::int64_t begin, std::vector<const float*>& parts) const {
  const Share& own = own_share();
  for (const GradientNode& node : updated_) {
    const int process = roster_.process_of(node.rank);
    if (is_own(process)) {
      const auto place = static_cast<std::size_t>(node.rank - roster_.first_rank());
      parts.push_back(stores_[place]->grads_of_part(node.part) + begin);
      continue;
    }
    const Bytes& in = in_[static_cast<std::size_t>(process)];
    parts.push_back(reinterpret_cast<const float*>(in.data() + kHeader) +
                    static_cast<std::int64_t>(node.part) * own.elements() + begin - own.begin);
  }
}

}  // namespace lockstep
