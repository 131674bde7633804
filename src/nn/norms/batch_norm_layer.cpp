#include "nn/norms/batch_norm_layer.h"

#include <algorithm>

#include "backend/moments.h"
#include "core/image_tree.h"
#include "lockstep/nn/onnx.h"
#include "lockstep/sync/communicator.h"
#include "nn/graph/gradient_parts.h"
#include "nn/onnx/class_name.h"

namespace lockstep {
namespace {

// Every array of the saved memory starts at a multiple of this many floats.
constexpr std::int64_t kAlignment = 64;

std::int64_t padded(std::int64_t floats) {
  return (floats + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

BatchNormLayer::BatchNormLayer(std::string name, std::vector<Value*> inputs, Value* output,
                               const Config& config, Parameter* weight, Parameter* bias,
                               BatchNormState* state)
    : Layer(std::move(name), std::move(inputs), output),
      config_(config),
      weight_(weight),
      bias_(bias),
      state_(state) {
  LOCKSTEP_CHECK(!config.norm.frozen || state != nullptr, this->name(),
                 ": a frozen layer needs running statistics (track_running_stats = true)");
  LOCKSTEP_CHECK(config.norm.options.virtual_devices >= 1, this->name(),
                 ": virtual_devices must be at least 1, got ", config.norm.options.virtual_devices);
}

std::vector<const Parameter*> BatchNormLayer::parameters() const {
  if (weight_ == nullptr) return {};
  return {weight_, bias_};
}

LayerTraits BatchNormLayer::traits() const {
  return {.reads_input = true,
          .reads_output = masks_by_output(),
          .saved_bytes = saved_bytes(),
          .saved_persists = true,
          .forward_in_place = left_to_convolution_,
          .grad_in_place = true,
          .accumulates_from = 1,
          .meets_in_backward = options().mode == BatchNormMode::kSync && !config_.norm.frozen};
}

// --- slices and their memory ---

bool BatchNormLayer::uses_running_statistics(const StepContext& context) const {
  return config_.norm.frozen || (!context.training && state_ != nullptr);
}

// Without running statistics an evaluation normalises the local batch as one, whatever the mode.
bool BatchNormLayer::exchanges(const StepContext& context) const {
  return options().mode == BatchNormMode::kSync && context.training && !config_.norm.frozen &&
         context.communicator != nullptr && context.communicator->size() > 1;
}

// torch.chunk's: ceil(batch / parts) samples each until used up.
std::int64_t BatchNormLayer::slice_samples(std::int64_t batch, bool split) const {
  const std::int64_t parts = split ? options().virtual_devices : 1;
  return std::max<std::int64_t>(1, (batch + parts - 1) / parts);
}

int BatchNormLayer::slice_count(const StepContext& context) const {
  const bool split = options().mode == BatchNormMode::kGhost && context.training &&
                     !uses_running_statistics(context);
  const std::int64_t batch = output()->data.shape.batch();
  if (!split || batch == 0) return 1;
  const std::int64_t samples = slice_samples(batch, true);
  return static_cast<int>((batch + samples - 1) / samples);
}

// Of the largest slice: one part per image.
std::int64_t BatchNormLayer::moments_floats() const {
  const bool split = options().mode == BatchNormMode::kGhost;
  return padded(slice_samples(output()->shape.batch(), split) * 2 * channels());
}

std::int64_t BatchNormLayer::slice_floats() const {
  return 2 * moments_floats() + padded(3 * channels());
}

std::int64_t BatchNormLayer::planned_slices() const {
  const bool split = options().mode == BatchNormMode::kGhost;
  return split ? std::min<std::int64_t>(options().virtual_devices, output()->shape.batch()) : 1;
}

std::size_t BatchNormLayer::saved_bytes() const {
  const bool split = options().mode == BatchNormMode::kGhost;
  const std::int64_t nodes = split ? image_tree_nodes(output()->shape.batch()) : 0;
  const std::int64_t floats = planned_slices() * slice_floats() + nodes * 2 * padded(channels());
  return static_cast<std::size_t>(floats) * sizeof(float);
}

void BatchNormLayer::set_saved(void* memory) {
  saved_ = static_cast<float*>(memory);
  local_.reserve(static_cast<std::size_t>(std::max(1, options().virtual_devices)));
}

void BatchNormLayer::prepare(Backend& backend, bool training) {
  keeps_for_backward_ = training;
  by_image_ = backend.sums_by_image();
}

Tensor BatchNormLayer::slice_of(const Tensor& tensor, int index, const StepContext& context) const {
  if (!tensor || slice_count(context) == 1) return tensor;
  const std::int64_t batch = tensor.shape.batch();
  const std::int64_t samples = slice_samples(batch, true);
  const std::int64_t begin = index * samples;
  return tensor.sample_range(begin, std::min(samples, batch - begin));
}

BatchNormLayer::Slice BatchNormLayer::slice(int index, const StepContext& context) const {
  Slice part;
  part.x = slice_of(inputs()[0]->data, index, context);
  if (inputs().size() == 2) part.residual = slice_of(inputs()[1]->data, index, context);
  part.y = slice_of(output()->data, index, context);
  if (slice_count(context) > 1)
    part.first = index * slice_samples(output()->data.shape.batch(), true);
  if (by_image_) part.parts = std::max<std::int64_t>(1, part.x.shape.batch());
  part.moments = saved_ + index * slice_floats();
  part.sums = part.moments + moments_floats();
  part.saved = part.sums + moments_floats();
  return part;
}

AffineParameters BatchNormLayer::affine() const {
  if (weight_ == nullptr) return {};
  return {weight_->value, bias_->value};
}

// --- work ---

// Statistics of the batch take a pass over x of their own, which must end before the other begins.
LayerWork BatchNormLayer::forward_work() const {
  const bool by_batch = !config_.norm.frozen && (keeps_for_backward_ || state_ == nullptr);
  if (left_to_convolution_ && !by_batch) {
    return {.bytes = inputs().size() == 2 ? element_bytes(inputs()[1]->data) : 0.0};
  }
  LayerWork work = Layer::forward_work();
  if (by_batch) work.bytes += element_bytes(inputs()[0]->data);
  return work;
}

// The sums read x and dy; so does dx, which needs them; the mask may need y in both.
LayerWork BatchNormLayer::backward_work(std::span<const GradTarget> grads) const {
  const double mask = masks_by_output() ? element_bytes(output()->data) : 0.0;
  const double reads = element_bytes(inputs()[0]->data) + element_bytes(output()->grad) + mask;
  LayerWork work{.bytes = reads};
  if (grads[0].tensor) work.bytes += reads;
  for (const GradTarget& target : grads) work.bytes += element_bytes(target);
  return work;
}

// --- forward ---

void BatchNormLayer::forward(Backend& backend, const StepContext& context) {
  if (context.training && context.communicator != nullptr) {
    context.communicator->enter("forward", name().c_str());
  }
  if (!uses_running_statistics(context)) return forward_by_batch(backend, context);
  if (keeps_for_backward_) return forward_by_running_statistics(backend, context);
  if (!left_to_convolution_) backend.batch_norm_inference(*inference(context));
}

void BatchNormLayer::forward_by_batch(Backend& backend, const StepContext& context) {
  const int slices = slice_count(context);
  if (exchanges(context) && !partition_) {
    const RankPartition& groups = options().process_groups;
    const int ranks = context.communicator->size();
    partition_ = context.communicator->join(groups.empty() ? contiguous_groups(ranks, 0) : groups);
  }
  set_local_moments(context);
  for (int i = 0; i < slices; ++i) {
    const Slice part = slice(i, context);
    backend.batch_norm_moments(part.x, part.moments, part.parts);
  }
  for (int i = 0; i < slices; ++i) normalize_slice(backend, context, i);
}

void BatchNormLayer::set_local_moments(const StepContext& context) {
  local_.clear();
  if (uses_running_statistics(context)) return;
  for (int i = 0; i < slice_count(context); ++i) {
    const Slice part = slice(i, context);
    local_.push_back({part.x.shape.rows(), part.moments, part.parts});
  }
}

void BatchNormLayer::normalize_slice(Backend& backend, const StepContext& context, int index) {
  const Slice part = slice(index, context);
  const std::span<const StatSlot> slots =
      merged(context, Direction::kForward, local_[static_cast<std::size_t>(index)]);
  if (checked_count(context, slots, part.x.shape.rows()) == 0) return;
  const RunningStatistics running = running_statistics(context, index);
  backend.batch_norm_forward({.x = part.x,
                              .residual = part.residual,
                              .y = part.y,
                              .affine = affine(),
                              .slots = slots,
                              .eps = options().eps,
                              .eps_mode = options().eps_mode,
                              .relu = config_.relu,
                              .saved = {part.saved},
                              .running = running});
}

std::span<const StatSlot> BatchNormLayer::merged(const StepContext& context, Direction direction,
                                                 const StatSlot& local) const {
  if (!exchanges(context)) return {&local, 1};
  const SyncCall call{.layer = name().c_str(),
                      .direction = direction,
                      .index = config_.call_index,
                      .channels = channels(),
                      .partition = *partition_,
                      .merge = direction == Direction::kForward ? merge_moments : merge_sums};
  return context.communicator->all_show(call, local, context.meanwhile);
}

std::int64_t BatchNormLayer::checked_count(const StepContext& context,
                                           std::span<const StatSlot> slots,
                                           std::int64_t rows) const {
  const std::int64_t count = total_count(slots);
  LOCKSTEP_CHECK(
      count != 1, name(), ": batch statistics need more than one value per channel, got 1",
      exchanges(context) ? " from all devices together" : "", " (this device: ", rows, " of ",
      inputs()[0]->data.shape.rows(), " rows, input ", to_string(inputs()[0]->data.shape),
      "); use a larger batch or images, mode \"sync\", or fewer slices");
  return count;
}

// The first slice of a device stands for it, as device 0 does for DataParallel.
RunningStatistics BatchNormLayer::running_statistics(const StepContext& context, int index) {
  if (state_ == nullptr || !context.training || !context.update_running_stats || index != 0) {
    return {};
  }
  ++state_->num_batches_tracked;
  const double momentum =
      options().momentum.value_or(1.0 / static_cast<double>(state_->num_batches_tracked));
  return {state_->running_mean, state_->running_var, momentum};
}

std::optional<BatchNormInference> BatchNormLayer::inference(const StepContext& context) const {
  if (!uses_running_statistics(context)) return std::nullopt;
  return BatchNormInference{.x = inputs()[0]->data,
                            .residual = inputs().size() == 2 ? inputs()[1]->data : Tensor{},
                            .y = output()->data,
                            .affine = affine(),
                            .mean = state_->running_mean,
                            .var = state_->running_var,
                            .eps = options().eps,
                            .eps_mode = options().eps_mode,
                            .relu = config_.relu};
}

// Normalises by a slot made of the running statistics, so that the backward pass finds its saved
// statistics. Two rows with M2 = 2 var have exactly the variance var.
void BatchNormLayer::forward_by_running_statistics(Backend& backend, const StepContext& context) {
  const Slice part = slice(0, context);
  const Shape row{1, channels()};
  const Tensor var(state_->running_var, row);
  const Tensor m2(part.moments + channels(), row);
  backend.copy(Tensor(state_->running_mean, row), Tensor(part.moments, row), false);
  backend.copy(var, m2, false);
  backend.copy(var, m2, true);
  const StatSlot running{2, part.moments};
  backend.batch_norm_forward({.x = part.x,
                              .residual = part.residual,
                              .y = part.y,
                              .affine = affine(),
                              .slots = {&running, 1},
                              .eps = options().eps,
                              .eps_mode = options().eps_mode,
                              .relu = config_.relu,
                              .saved = {part.saved},
                              .running = {}});
  set_local_moments(context);
}

// --- backward ---

void BatchNormLayer::backward(Backend& backend, const StepContext& context,
                              std::span<const GradTarget> grads) {
  if (context.training && context.communicator != nullptr) {
    context.communicator->enter("backward", name().c_str());
  }
  const int slices = slice_count(context);
  for (int i = 0; i < slices; ++i) backward_slice(backend, context, i, grads);
}

void BatchNormLayer::backward_slice(Backend& backend, const StepContext& context, int index,
                                    std::span<const GradTarget> grads) {
  const Slice part = slice(index, context);
  const std::int64_t rows = part.x.shape.rows();
  if (rows == 0 && !exchanges(context)) return;
  const Tensor grad_y = slice_of(output()->grad, index, context);
  const Tensor mask = masks_by_output() ? part.y : Tensor{};
  reduce_slice(backend, context, part, grad_y, mask);
  GradTarget residual = grads.size() == 2 ? grads[1] : GradTarget{};
  residual.tensor = slice_of(residual.tensor, index, context);
  // Every rank has the same plan, so that all or none exchange.
  if (!grads[0].tensor) return backward_residual(backend, part, grad_y, residual);
  if (uses_running_statistics(context)) {
    // Constants pass no gradient on.
    backend.fill(Tensor(part.sums, Shape{part.parts, 2 * channels()}), 0.0F);
  }
  const StatSlot local{rows, part.sums, part.parts};
  const std::span<const StatSlot> slots = merged(context, Direction::kBackward, local);
  backend.batch_norm_backward_apply({.x = part.x,
                                     .grad_y = grad_y,
                                     .y = mask,
                                     .affine = affine(),
                                     .saved = {part.saved},
                                     .relu = config_.relu,
                                     .slots = slots,
                                     .grad_x = slice_of(grads[0].tensor, index, context),
                                     .grad_residual = residual.tensor,
                                     .accumulate_residual = residual.accumulate});
}

void BatchNormLayer::reduce_slice(Backend& backend, const StepContext& context, const Slice& part,
                                  const Tensor& grad_y, const Tensor& mask) const {
  const std::int64_t images = part.x.shape.batch();
  const bool in_tree = by_image_ && weight_ != nullptr && slice_count(context) > 1;
  for_each_gradient_part(context, output()->data.shape.batch(), [&](const GradientPart& grads) {
    const std::int64_t begin = std::max(part.first, grads.first);
    const std::int64_t end = std::min(part.first + images, grads.first + grads.count);
    if (begin >= end && images > 0) return;
    if (in_tree) return reduce_into_tree(backend, {part, grad_y, mask}, grads, begin, end);
    reduce(backend, {part, grad_y, mask}, begin, end - begin, gradient(weight_, grads),
           gradient(bias_, grads));
  });
}

void BatchNormLayer::reduce(Backend& backend, const SliceGradient& slice, std::int64_t begin,
                            std::int64_t count, float* grad_weight, float* grad_bias) const {
  const Slice& part = slice.part;
  const std::int64_t first = begin - part.first;
  backend.batch_norm_backward_reduce(
      {.x = part.x.sample_range(first, count),
       .grad_y = slice.grad_y.sample_range(first, count),
       .y = slice.mask ? slice.mask.sample_range(first, count) : Tensor{},
       .affine = affine(),
       .saved = {part.saved},
       .relu = config_.relu,
       .sums = part.sums + (by_image_ ? first * 2 * channels() : 0),
       .grad_weight = grad_weight,
       .grad_bias = grad_bias,
       .parts = by_image_ ? std::max<std::int64_t>(1, count) : 1});
}

// One tree over the images of all slices, so that gamma and beta get the bits that they get from
// devices with a slice each.
void BatchNormLayer::reduce_into_tree(Backend& backend, const SliceGradient& slice,
                                      const GradientPart& grads, std::int64_t begin,
                                      std::int64_t end) const {
  const std::int64_t stride = padded(channels());
  float* nodes = saved_ + planned_slices() * slice_floats();
  const auto tensor = [&](int node) { return Tensor(nodes + node * 2 * stride, Shape{2, stride}); };
  const auto join = [&](int node) { backend.copy(tensor(node + 1), tensor(node), true); };
  for (std::int64_t image = begin; image < end; ++image) {
    const auto take = [&](int node, bool first) {
      if (first) backend.fill(tensor(node), 0.0F);
      float* sums = tensor(node).floats();
      reduce(backend, slice, image, 1, sums, sums + stride);
    };
    place_image(image - grads.first, take, join);
  }
  if (end != grads.first + grads.count) return;
  join_nodes(grads.count, join);
  const Shape row{1, channels()};
  backend.copy(Tensor(nodes, row), Tensor(gradient(weight_, grads), row), true);
  backend.copy(Tensor(nodes + stride, row), Tensor(gradient(bias_, grads), row), true);
}

void BatchNormLayer::backward_residual(Backend& backend, const Slice& part, const Tensor& grad_y,
                                       const GradTarget& target) const {
  if (!target.tensor) return;
  if (config_.relu) return backend.relu_backward(part.y, grad_y, target.tensor, target.accumulate);
  backend.copy(grad_y, target.tensor, target.accumulate);
}

// --- export ---

std::string BatchNormLayer::export_onnx(OnnxGraph& graph) const {
  LOCKSTEP_CHECK(state_ != nullptr, name(), " (", class_name(*this),
                 "): without running statistics (track_running_stats = false) it normalises by the "
                 "batch at hand also in evaluation, which ONNX has no layer for");
  const OnnxInts extents{channels()};
  const auto constant = [&](const Parameter* parameter, const char* absent, float value) {
    if (parameter != nullptr) return graph.parameter(*parameter);
    return graph.floats(absent, extents,
                        std::vector<float>(static_cast<std::size_t>(channels()), value));
  };
  std::vector<float> var = graph.read(state_->running_var, channels());
  float eps = options().eps;
  if (options().eps_mode == EpsMode::kClamp) {
    for (float& v : var) v = std::max(v, eps);
    eps = 0;
  }
  std::string y = graph.add(
      "BatchNormalization",
      {graph.tensor(inputs()[0]), constant(weight_, "weight", 1), constant(bias_, "bias", 0),
       graph.floats("running_mean", extents, graph.read(state_->running_mean, channels())),
       graph.floats("running_var", extents, var)},
      {{"epsilon", eps}});
  if (inputs().size() == 2) y = graph.add("Add", {y, graph.tensor(inputs()[1])});
  if (config_.relu) y = graph.add("Relu", {y});
  return y;
}

}  // namespace lockstep
