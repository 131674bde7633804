#include "parallel/gradient_tree.h"

#include <algorithm>

namespace lockstep {
namespace {

/// The end of the node at `begin` that has room for `room` images, a power of two.
std::int64_t node_end(std::int64_t begin, std::int64_t room, std::int64_t batch) {
  return std::min(begin + room, batch);
}

/// Of two neighbours, whether they make up a node. A left one that is no left half does not come
/// here: nodes come in order, so that it has been joined to the half before it.
bool are_halves(const GradientNode& left, const GradientNode& right, std::int64_t batch) {
  const std::int64_t half = left.end - left.begin;
  return right.end == node_end(left.begin, 2 * half, batch);
}

}  // namespace

void GradientTree::plan_by_image(std::span<const BatchPart> parts, std::int64_t batch) {
  nodes_.clear();
  for (int rank = 0; const BatchPart& part : parts) {
    add_nodes(rank++, part.sample_offset, part.sample_offset + part.count, batch);
  }
  plan_joins(batch);
}

void GradientTree::plan_by_rank(int ranks) {
  nodes_.clear();
  for (int rank = 0; rank < ranks; ++rank) nodes_.push_back({rank, rank + 1, rank, 0});
  plan_joins(ranks);
}

void GradientTree::add_nodes(int rank, std::int64_t begin, std::int64_t end, std::int64_t batch) {
  for (std::size_t part = 0; begin < end; ++part) {
    std::int64_t room = 1;
    while (begin % (2 * room) == 0 && node_end(begin, 2 * room, batch) <= end &&
           room < end - begin) {
      room *= 2;
    }
    nodes_.push_back({begin, node_end(begin, room, batch), rank, part});
    begin = nodes_.back().end;
  }
}

void GradientTree::plan_joins(std::int64_t batch) {
  joins_.clear();
  waiting_.clear();
  for (const GradientNode& node : nodes_) {
    waiting_.push_back(node);
    int joins = 0;
    while (waiting_.size() > 1 && are_halves(waiting_.end()[-2], waiting_.back(), batch)) {
      waiting_.end()[-2].end = waiting_.back().end;
      waiting_.pop_back();
      ++joins;
    }
    joins_.push_back(joins);
  }
}

std::span<const GradientNode> GradientTree::nodes_of(int rank) const {
  const auto of_rank = [rank](const GradientNode& node) { return node.rank == rank; };
  const auto first = std::find_if(nodes_.begin(), nodes_.end(), of_rank);
  return {first, std::find_if_not(first, nodes_.end(), of_rank)};
}

}  // namespace lockstep
