#include "nn/norms/batch_norm_parts.h"

#include <algorithm>

#include "backend/moments.h"
#include "core/image_tree.h"
#include "nn/layer_support.h"

namespace lockstep {
namespace {

// Every array of the saved memory starts at a multiple of this many floats.
constexpr std::int64_t kAlignment = 64;

std::int64_t padded(std::int64_t floats) {
  return (floats + kAlignment - 1) / kAlignment * kAlignment;
}

// `count` images of the device's batch from `begin` on.
void reduce_images(NormOperations& norms, const SliceBackward& backward, std::int64_t begin,
                   std::int64_t count, float* grad_weight, float* grad_bias) {
  const NormSlice& slice = backward.slice;
  const std::int64_t first = begin - slice.first;
  const bool per_image = slice.parts > 1;
  norms.batch_norm_backward_reduce(
      {.x = slice.x.sample_range(first, count),
       .grad_y = backward.grad_y.sample_range(first, count),
       .y = backward.mask ? backward.mask.sample_range(first, count) : Tensor{},
       .affine = backward.affine.values(slice),
       .saved = {slice.saved},
       .relu = backward.relu,
       .sums = slice.sums + (per_image ? first * 2 * slice.x.shape.channels() : 0),
       .grad_weight = grad_weight,
       .grad_bias = grad_bias,
       .parts = per_image ? std::max<std::int64_t>(1, count) : 1});
}

// The kernels know the corrected gamma and beta alone.
void reduce(Backend& backend, const SliceBackward& backward, std::int64_t begin, std::int64_t count,
            float* grad_weight, float* grad_bias) {
  if (backward.slice.correction == nullptr || grad_weight == nullptr) {
    return reduce_images(backend.norms(), backward, begin, count, grad_weight, grad_bias);
  }
  const std::int64_t channels = backward.slice.x.shape.channels();
  float* corrected = backward.slice.correction + 4 * channels;
  backend.fill(Tensor(corrected, Shape{2, channels}), 0.0F);
  reduce_images(backend.norms(), backward, begin, count, corrected, corrected + channels);
  backend.norms().batch_renorm_gradient({.corrected = corrected,
                                         .correction = backward.slice.correction,
                                         .channels = channels,
                                         .grad_weight = grad_weight,
                                         .grad_bias = grad_bias});
}

// The images [begin, end) are the next of those of `grads`, which get their sum behind the last.
// What a device with this slice alone would add up by itself, its largest nodes, is added up, and
// corrected, at once.
void reduce_into_tree(Backend& backend, const SliceBackward& backward, const GradientPart& grads,
                      std::int64_t begin, std::int64_t end) {
  const auto tensor = [&](int node) { return backward.tree->node(node); };
  const std::int64_t stride = tensor(0).shape.channels();
  const auto join = [&](int node) { backend.copy(tensor(node + 1), tensor(node), true); };
  std::int64_t added = begin - grads.first;
  for (const std::int64_t last = end - grads.first; added < last;) {
    const std::int64_t room = largest_node(added, last, grads.count);
    const auto take = [&](int node, bool first) {
      if (first) backend.fill(tensor(node), 0.0F);
      float* sums = tensor(node).floats();
      reduce(backend, backward, grads.first + added, std::min(room, last - added), sums,
             sums + stride);
    };
    place_image(added / room, take, join);
    added += room;
  }
  if (end != grads.first + grads.count) return;
  join_nodes(added, join);
  const Shape row{1, backward.slice.x.shape.channels()};
  const Parameter *weight = backward.affine.weight(), *bias = backward.affine.bias();
  float* root = tensor(0).floats();
  backend.copy(Tensor(root, row), Tensor(gradient(weight, grads), row), true);
  backend.copy(Tensor(root + stride, row), Tensor(gradient(bias, grads), row), true);
}

}  // namespace

// --- BatchSlices ---

std::int64_t BatchSlices::samples(std::int64_t batch) const {
  return std::max<std::int64_t>(1, (batch + most_ - 1) / most_);
}

int BatchSlices::count(std::int64_t batch) const {
  return static_cast<int>(std::max<std::int64_t>(1, (batch + samples(batch) - 1) / samples(batch)));
}

Tensor BatchSlices::of(const Tensor& tensor, int index) const {
  if (!tensor || count(tensor.shape.batch()) == 1) return tensor;
  const std::int64_t batch = tensor.shape.batch(), begin = index * samples(batch);
  return tensor.sample_range(begin, std::min(samples(batch), batch - begin));
}

// --- NormMemory ---

NormMemory::NormMemory(const Shape& planned, const BatchSlices& slices, bool corrected)
    : slices_(slices),
      channels_(planned.channels()),
      moments_(padded(slices.samples(planned.batch()) * 2 * channels_)),
      placed_(std::clamp<std::int64_t>(planned.batch(), 1, slices.most())),
      nodes_(slices.most() > 1 ? image_tree_nodes(planned.batch()) : 0),
      correction_(corrected ? padded(6 * channels_) : 0),
      whole_(padded(std::max<std::int64_t>(1, planned.batch()) * 2 * channels_)) {}

std::int64_t NormMemory::slice_floats() const {
  return 2 * moments_ + padded(3 * channels_) + correction_;
}

std::size_t NormMemory::bytes() const {
  const std::int64_t floats = placed_ * slice_floats() + nodes_ * 2 * padded(channels_);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void NormMemory::place(int index, NormSlice& slice) const {
  slice.moments = memory_ + index * slice_floats();
  slice.sums = slice.moments + moments_;
  slice.saved = slice.sums + moments_;
  slice.correction = correction_ == 0 ? nullptr : slice.saved + padded(3 * channels_);
}

void NormMemory::place_whole(NormSlice& slice) const {
  slice.moments = memory_;
  slice.sums = slice.moments + whole_;
  slice.saved = slice.sums + whole_;
}

Tensor NormMemory::node(int index) const {
  const std::int64_t stride = padded(channels_);
  return Tensor(memory_ + placed_ * slice_floats() + index * 2 * stride, Shape{2, stride});
}

// --- NormStates ---

// Where slices have none of their own, the first stands for the device, as device 0 does for
// DataParallel.
BatchNormState* NormStates::state_of(int slice) const {
  const auto index = static_cast<std::size_t>(slice);
  return index < states_.size() ? states_[index] : nullptr;
}

RunningStatistics NormStates::next(int slice, const StepContext& context,
                                   std::optional<double> momentum) {
  BatchNormState* state = state_of(slice);
  if (state == nullptr || !context.training || !context.update_running_stats) return {};
  ++state->num_batches_tracked;
  const double share = momentum.value_or(1.0 / static_cast<double>(state->num_batches_tracked));
  return {state->running_mean, state->running_var, share};
}

// --- NormAffine ---

std::vector<const Parameter*> NormAffine::parameters() const {
  if (weight_ == nullptr) return {};
  return {weight_, bias_};
}

AffineParameters NormAffine::values() const {
  if (weight_ == nullptr) return {};
  return {weight_->value, bias_->value};
}

AffineParameters NormAffine::values(const NormSlice& slice) const {
  if (slice.correction == nullptr) return values();
  const float* corrected = slice.correction + 2 * slice.x.shape.channels();
  return {corrected, corrected + slice.x.shape.channels()};
}

// --- the correction ---

void correct_slice(NormOperations& norms, const NormSlice& slice, const NormAffine& affine,
                   std::span<const StatSlot> slots, const BatchNormOptions& options,
                   const BatchNormState* state) {
  if (slice.correction == nullptr || total_count(slots) == 0) return;
  const RenormLimits limits(options, state->num_batches_tracked);
  const std::int64_t channels = slice.x.shape.channels();
  norms.batch_renorm_correction({.slots = slots,
                                 .channels = channels,
                                 .affine = affine.values(),
                                 .running_mean = state->running_mean,
                                 .running_var = state->running_var,
                                 .eps = options.eps,
                                 .eps_mode = options.eps_mode,
                                 .max_r = limits.max_r,
                                 .max_d = limits.max_d,
                                 .correction = slice.correction,
                                 .corrected = slice.correction + 2 * channels});
}

// --- the backward pass ---

void reduce_slice(Backend& backend, const StepContext& context, const SliceBackward& backward) {
  const NormSlice& slice = backward.slice;
  const std::int64_t images = slice.x.shape.batch();
  for_each_gradient_part(context, backward.batch, [&](const GradientPart& grads) {
    const std::int64_t begin = std::max(slice.first, grads.first);
    const std::int64_t end = std::min(slice.first + images, grads.first + grads.count);
    if (begin >= end && images > 0) return;
    if (backward.tree != nullptr) return reduce_into_tree(backend, backward, grads, begin, end);
    reduce(backend, backward, begin, end - begin, gradient(backward.affine.weight(), grads),
           gradient(backward.affine.bias(), grads));
  });
}

void backward_residual(Backend& backend, bool relu, const Tensor& y, const Tensor& grad_y,
                       const GradTarget& target) {
  if (!target.tensor) return;
  if (relu) {
    return backend.activations().activation_backward(ActivationKind::kRelu, y, grad_y,
                                                     target.tensor, target.accumulate);
  }
  backend.copy(grad_y, target.tensor, target.accumulate);
}

}  // namespace lockstep
