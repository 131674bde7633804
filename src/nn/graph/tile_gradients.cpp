#include "nn/graph/tile_gradients.h"

#include <algorithm>

namespace lockstep {

TileGradients::TileGradients(Backend& backend, const ParameterStore& store, std::int64_t planned,
                             std::int64_t tile)
    : backend_(backend), store_(store), planned_(planned), tile_(tile) {}

// --- set-up ---

// Every layer has a region of its own: of several calls of one layer each has a tree of its own.
void TileGradients::add_stretch(std::span<const Layer* const> layers) {
  StretchRegions stretch;
  for (const Layer* layer : layers) {
    std::int64_t first = store_.elements(), end = 0;
    for (const Parameter* parameter : layer->parameters()) {
      first = std::min(first, parameter->offset);
      end = std::max(end, parameter->offset + parameter->elements);
    }
    if (first >= end) continue;
    stretch.regions.push_back({layer, first, end - first, stretch.elements});
    stretch.elements += (end - first + 63) / 64 * 64;
  }
  elements_ = std::max(elements_, stretch.elements);
  stretches_.push_back(std::move(stretch));
}

// As a pass whose gradients are zero takes it.
void TileGradients::reserve() {
  const auto has_some = [](const StretchRegions& stretch) { return stretch.elements > 0; };
  const auto found = std::find_if(stretches_.begin(), stretches_.end(), has_some);
  if (found == stretches_.end()) return;
  begin_stretch(static_cast<std::size_t>(found - stretches_.begin()), {}, planned_);
  for (std::int64_t first = 0; first < planned_; first += tile_) {
    begin_tile(first, std::min(tile_, planned_ - first));
    end_tile();
  }
}

float* TileGradients::take() {
  if (free_.empty()) {
    memory_.push_back(backend_.allocate(static_cast<std::size_t>(elements_) * sizeof(float)));
    free_.push_back(static_cast<float*>(memory_.back().data()));
  }
  float* const memory = free_.back();
  free_.pop_back();
  return memory;
}

// --- a pass ---

// A pass that failed may have left some behind.
void TileGradients::begin_stretch(std::size_t stretch, std::span<const GradientPart> parts,
                                  std::int64_t batch) {
  stretch_ = &stretches_[stretch];
  in_tree_ = batch > tile_ && backend_.sums_by_image() && stretch_->elements > 0;
  parts_.assign(parts.begin(), parts.end());
  if (parts_.empty() && in_tree_) parts_.push_back({0, batch, store_.grads()});
  for (const std::vector<Node>* left : {&waiting_, &opened_}) {
    for (const Node& node : *left) free_.push_back(node.memory);
  }
  waiting_.clear();
  opened_.clear();
}

void TileGradients::begin_tile(std::int64_t first, std::int64_t count) {
  first_ = first;
  if (!in_tree_) return;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const GradientPart& part = parts_[p];
    std::int64_t begin = std::max(first - part.first, std::int64_t{0});
    const std::int64_t end = std::min(first + count - part.first, part.count);
    while (begin < end) {
      const ImageNode node = largest_image_node(begin, end, part.count);
      open(p, node);
      begin = node.end;
    }
  }
}

void TileGradients::open(std::size_t part, const ImageNode& node) {
  opened_.push_back({node, part, take()});
  backend_.fill(all_of(opened_.back()), 0.0F);
}

std::span<const GradientPart> TileGradients::parts_of(const Layer& layer) {
  if (!in_tree_) return parts_;
  given_.clear();
  for (const Region& region : stretch_->regions) {
    if (region.layer != &layer) continue;
    for (const Node& node : opened_) {
      given_.push_back({parts_[node.part].first + node.begin - first_, node.end - node.begin,
                        node.memory + region.at, region.first});
    }
  }
  return given_;
}

void TileGradients::end_tile() {
  for (const Node& node : opened_) add(node);
  opened_.clear();
}

void TileGradients::add(const Node& node) {
  const std::int64_t images = parts_[node.part].count;
  waiting_.push_back(node);
  while (waiting_.size() > 1 && are_halves(waiting_.end()[-2], waiting_.back(), images)) {
    Node& left = waiting_.end()[-2];
    backend_.copy(all_of(waiting_.back()), all_of(left), true);
    left.end = waiting_.back().end;
    free_.push_back(waiting_.back().memory);
    waiting_.pop_back();
  }
  if (node.end != images) return;
  add_to_part(waiting_.front());
  free_.push_back(waiting_.front().memory);
  waiting_.clear();
}

void TileGradients::add_to_part(const Node& root) {
  const GradientPart& part = parts_[root.part];
  for (const Region& region : stretch_->regions) {
    const Shape row{1, region.count};
    float* const grads = part.grads == nullptr ? store_.grads() : part.grads;
    backend_.copy(Tensor(root.memory + region.at, row),
                  Tensor(grads + (region.first - part.first_element), row), true);
  }
}

}  // namespace lockstep
