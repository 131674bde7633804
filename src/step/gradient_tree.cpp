#include "step/gradient_tree.h"

#include <algorithm>

#include "core/image_tree.h"

namespace lockstep {
void add_largest_nodes(int rank, std::int64_t begin, std::int64_t end, std::int64_t batch,
                       std::vector<GradientNode>& nodes) {
  for (std::size_t part = 0; begin < end; ++part) {
    nodes.push_back({largest_image_node(begin, end, batch), rank, part});
    begin = nodes.back().end;
  }
}

void plan_joins(std::span<const GradientNode> nodes, std::int64_t batch, std::vector<int>& joins,
                std::vector<GradientNode>& waiting) {
  joins.clear();
  waiting.clear();
  for (const GradientNode& node : nodes) {
    waiting.push_back(node);
    int joined = 0;
    while (waiting.size() > 1 && are_halves(waiting.end()[-2], waiting.back(), batch)) {
      waiting.end()[-2].end = waiting.back().end;
      waiting.pop_back();
      ++joined;
    }
    joins.push_back(joined);
  }
}

void GradientTree::plan_by_image(std::span<const BatchPart> parts, std::int64_t batch) {
  nodes_.clear();
  for (int rank = 0; const BatchPart& part : parts) {
    add_largest_nodes(rank++, part.sample_offset, part.sample_offset + part.count, batch, nodes_);
  }
  plan(batch);
}

void GradientTree::plan_by_rank(int ranks) {
  nodes_.clear();
  for (int rank = 0; rank < ranks; ++rank) nodes_.push_back({{rank, rank + 1}, rank, 0});
  plan(ranks);
}

void GradientTree::plan(std::int64_t leaves) {
  leaves_ = leaves;
  plan_joins(nodes_, leaves, joins_, waiting_);
}

std::span<const GradientNode> GradientTree::nodes_of(int rank) const {
  const auto of_rank = [rank](const GradientNode& node) { return node.rank == rank; };
  const auto first = std::find_if(nodes_.begin(), nodes_.end(), of_rank);
  return {first, std::find_if_not(first, nodes_.end(), of_rank)};
}

}  // namespace lockstep
