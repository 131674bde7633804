#include "nn/norms/batch_norm_layer.h"

#include <algorithm>

#include "backend/moments.h"
#include "lockstep/nn/onnx.h"
#include "lockstep/sync/communicator.h"
#include "nn/layer_support.h"

namespace lockstep {
namespace {

constexpr BatchSlices kWholeBatch;

/// `rows`: of the device's slice; `exchanged`: whether `count` is of all devices.
void check_count(const Layer& layer, std::int64_t count, std::int64_t rows, bool exchanged) {
  const Shape& input = layer.inputs()[0]->data.shape;
  LOCKSTEP_CHECK(count != 1, layer.name(),
                 ": batch statistics need more than one value per channel, got 1",
                 exchanged ? " from all devices together" : "", " (this device: ", rows, " of ",
                 input.rows(), " rows, input ", to_string(input),
                 "); use a larger batch or images, synchronized BatchNorm, or fewer slices");
}

}  // namespace

BatchNormLayer::BatchNormLayer(std::string name, std::vector<Value*> inputs, Value* output,
                               const Config& config, Parameter* weight, Parameter* bias,
                               std::vector<BatchNormState*> states)
    : Layer(std::move(name), std::move(inputs), output),
      config_(config),
      affine_(weight, bias),
      states_(std::move(states)),
      memory_(this->output()->shape, BatchSlices(std::max(1, config.norm.options.slices())),
              config.norm.options.corrects()),
      exchange_(this->name(), config.call_index, config.norm.options.process_groups) {
  LOCKSTEP_CHECK(!config.norm.is_frozen() || state() != nullptr, this->name(),
                 ": a frozen layer needs running statistics (track_running_stats = true)");
  LOCKSTEP_CHECK(!config.norm.options.corrects() || state() != nullptr, this->name(),
                 ": renorm corrects towards running statistics (track_running_stats = true)");
  local_.reserve(static_cast<std::size_t>(memory_.slices().most()));
}

LayerTraits BatchNormLayer::traits() const {
  return {.reads_input = true,
          .reads_output = masks_by_output(),
          .saved_bytes = memory_.bytes(),
          .saved_persists = true,
          .forward_in_place = left_to_convolution_,
          .grad_in_place = true,
          .accumulates_from = 1,
          .meets_in_backward = synchronizes(),
          .by_image = config_.norm.is_frozen(),
          .computes_again = true};
}

// --- slices and their memory ---

bool BatchNormLayer::uses_running_statistics(const StepContext& context) const {
  return state() != nullptr && (config_.norm.is_frozen() || !context.training);
}

// Without running statistics an evaluation normalises the local batch, whatever the mode.
Communicator& BatchNormLayer::communicator(const StepContext& context) const {
  return synchronizes() && context.training ? context.communicator.get() : lone_rank();
}

// Only a batch's own statistics are those of slices, and only in training.
const BatchSlices& BatchNormLayer::slices(const StepContext& context) const {
  return context.training && !uses_running_statistics(context) ? memory_.slices() : kWholeBatch;
}

NormSlice BatchNormLayer::slice(int index, const StepContext& context) const {
  const BatchSlices& cut = slices(context);
  NormSlice part;
  part.x = cut.of(inputs()[0]->data, index);
  if (inputs().size() == 2) part.residual = cut.of(inputs()[1]->data, index);
  part.y = cut.of(output()->data, index);
  part.first = index * cut.samples(output()->data.shape.batch());
  if (by_image_) part.parts = std::max<std::int64_t>(1, part.x.shape.batch());
  place(index, context, part);
  return part;
}

void BatchNormLayer::place(int index, const StepContext& context, NormSlice& slice) const {
  &slices(context) == &memory_.slices() ? memory_.place(index, slice) : memory_.place_whole(slice);
}

void BatchNormLayer::freeze() {
  if (state() != nullptr) config_.norm = FrozenBatchNorm(options());
}

void BatchNormLayer::prepare(Backend& backend, bool training) {
  keeps_for_backward_ = training;
  by_image_ = backend.sums_by_image();
}

// --- work ---

// Statistics of the batch take a pass over x of their own, which must end before the other begins.
LayerWork BatchNormLayer::forward_work() const {
  const bool by_batch = !config_.norm.is_frozen() && (keeps_for_backward_ || state() == nullptr);
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
  if (context.training) context.communicator.get().enter("forward", name().c_str());
  images_ = output()->data.shape.batch();
  if (!uses_running_statistics(context)) return forward_by_batch(backend.norms(), context);
  if (keeps_for_backward_) return forward_by_running_statistics(backend, context);
  if (!left_to_convolution_) backend.norms().batch_norm_inference(*inference(context));
}

void BatchNormLayer::forward_by_batch(NormOperations& norms, const StepContext& context) {
  const int count = slices(context).count(output()->data.shape.batch());
  set_local_moments(context);
  for (int i = 0; i < count; ++i) {
    const NormSlice part = slice(i, context);
    norms.batch_norm_moments(part.x, part.moments, part.parts);
  }
  for (int i = 0; i < count; ++i) normalize_slice(norms, context, i);
}

void BatchNormLayer::set_local_moments(const StepContext& context) {
  local_.clear();
  if (uses_running_statistics(context)) return;
  for (int i = 0; i < slices(context).count(output()->data.shape.batch()); ++i) {
    const NormSlice part = slice(i, context);
    local_.push_back({part.x.shape.rows(), part.moments, part.parts});
  }
}

// Where the output has no memory, the statistics are all that is wanted.
BatchNormForward BatchNormLayer::forward_of(const NormSlice& slice,
                                            std::span<const StatSlot> slots) const {
  const bool normalizes = static_cast<bool>(slice.y);
  return {.x = normalizes ? slice.x : slice.x.sample_range(0, 0),
          .residual = normalizes ? slice.residual : Tensor{},
          .y = normalizes ? slice.y : Tensor{},
          .affine = affine_.values(slice),
          .slots = slots,
          .eps = options().eps,
          .eps_mode = options().eps_mode,
          .relu = config_.relu,
          .saved = {slice.saved},
          .running = {}};
}

void BatchNormLayer::normalize_slice(NormOperations& norms, const StepContext& context, int index) {
  const NormSlice part = slice(index, context);
  Communicator& ranks = communicator(context);
  const std::span<const StatSlot> slots = exchange_.show(
      ranks,
      {local_[static_cast<std::size_t>(index)], channels(), Direction::kForward, merge_moments},
      context.meanwhile);
  const std::int64_t count = total_count(slots);
  check_count(*this, count, part.x.shape.rows(), ranks.size() > 1);
  if (count == 0) return;
  correct_slice(norms, part, affine_, slots, options(), states_.state_of(index));
  BatchNormForward arguments = forward_of(part, slots);
  arguments.running = states_.next(index, context, options().momentum);
  norms.batch_norm_forward(arguments);
}

// By the statistics that the pass over all images kept: those of the slice that an image is in.
void BatchNormLayer::forward_again(Backend& backend, const StepContext& context) {
  if (config_.norm.is_frozen()) return forward(backend, context);
  const BatchSlices& cut = slices(context);
  const std::int64_t begin = context.first_image;
  const std::int64_t end = begin + output()->data.shape.batch();
  for (int i = 0; i < cut.count(images_); ++i) {
    const std::int64_t first = std::max(begin, i * cut.samples(images_));
    const std::int64_t count = std::min(end, (i + 1) * cut.samples(images_)) - first;
    if (count <= 0) continue;
    const auto images = [&](const Tensor& tensor) {
      return tensor.sample_range(first - begin, count);
    };
    NormSlice part;
    part.x = images(inputs()[0]->data);
    part.y = images(output()->data);
    if (inputs().size() == 2) part.residual = images(inputs()[1]->data);
    place(i, context, part);
    backend.norms().batch_norm_forward(forward_of(part, {}));
  }
}

std::optional<BatchNormInference> BatchNormLayer::inference(const StepContext& context) const {
  if (!uses_running_statistics(context)) return std::nullopt;
  return BatchNormInference{.x = inputs()[0]->data,
                            .residual = inputs().size() == 2 ? inputs()[1]->data : Tensor{},
                            .y = output()->data,
                            .affine = affine_.values(),
                            .mean = state()->running_mean,
                            .var = state()->running_var,
                            .eps = options().eps,
                            .eps_mode = options().eps_mode,
                            .relu = config_.relu};
}

// Normalises by a slot made of the running statistics, so that the backward pass finds its saved
// statistics. Two rows with M2 = 2 var have exactly the variance var.
void BatchNormLayer::forward_by_running_statistics(Backend& backend, const StepContext& context) {
  const NormSlice part = slice(0, context);
  const Shape row{1, channels()};
  const Tensor var(state()->running_var, row);
  const Tensor m2(part.moments + channels(), row);
  backend.copy(Tensor(state()->running_mean, row), Tensor(part.moments, row), false);
  backend.copy(var, m2, false);
  backend.copy(var, m2, true);
  const StatSlot running{2, part.moments};
  backend.norms().batch_norm_forward(forward_of(part, {&running, 1}));
  set_local_moments(context);
}

// --- backward ---

void BatchNormLayer::backward(Backend& backend, const StepContext& context,
                              std::span<const GradTarget> grads) {
  if (context.training) context.communicator.get().enter("backward", name().c_str());
  const int count = slices(context).count(output()->data.shape.batch());
  for (int i = 0; i < count; ++i) backward_slice(backend, context, i, grads);
}

void BatchNormLayer::backward_slice(Backend& backend, const StepContext& context, int index,
                                    std::span<const GradTarget> grads) {
  const NormSlice part = slice(index, context);
  const std::int64_t rows = part.x.shape.rows();
  Communicator& ranks = communicator(context);
  if (rows == 0 && ranks.size() == 1) return;
  const BatchSlices& cut = slices(context);
  const Tensor grad_y = cut.of(output()->grad, index);
  const Tensor mask = masks_by_output() ? part.y : Tensor{};
  const bool one_tree = by_image_ && affine_.weight() != nullptr &&
                        slices(context).count(output()->data.shape.batch()) > 1;
  reduce_slice(backend, context,
               {.slice = part,
                .affine = affine_,
                .grad_y = grad_y,
                .mask = mask,
                .relu = config_.relu,
                .batch = output()->data.shape.batch(),
                .tree = one_tree ? &memory_ : nullptr});
  GradTarget residual = grads.size() == 2 ? grads[1] : GradTarget{};
  residual.tensor = cut.of(residual.tensor, index);
  // Every rank has the same plan, so that all or none exchange.
  if (!grads[0].tensor) {
    return backward_residual(backend, config_.relu, part.y, grad_y, residual);
  }
  if (uses_running_statistics(context)) {
    // Constants pass no gradient on.
    backend.fill(Tensor(part.sums, Shape{part.parts, 2 * channels()}), 0.0F);
  }
  const StatSlot local{rows, part.sums, part.parts};
  const std::span<const StatSlot> slots = exchange_.show(
      ranks, {local, channels(), Direction::kBackward, merge_sums}, context.meanwhile);
  backend.norms().batch_norm_backward_apply({.x = part.x,
                                             .grad_y = grad_y,
                                             .y = mask,
                                             .affine = affine_.values(part),
                                             .saved = {part.saved},
                                             .relu = config_.relu,
                                             .slots = slots,
                                             .grad_x = cut.of(grads[0].tensor, index),
                                             .grad_residual = residual.tensor,
                                             .accumulate_residual = residual.accumulate});
}

// --- export ---

std::string BatchNormLayer::export_onnx(OnnxGraph& graph) const {
  LOCKSTEP_CHECK(state() != nullptr, name(), " (", class_name(*this),
                 "): without running statistics (track_running_stats = false) it normalises by the "
                 "batch at hand also in evaluation, which ONNX has no layer for");
  const OnnxInts extents{channels()};
  const auto constant = [&](const Parameter* parameter, const char* absent, float value) {
    if (parameter != nullptr) return graph.parameter(*parameter);
    return graph.floats(absent, extents,
                        std::vector<float>(static_cast<std::size_t>(channels()), value));
  };
  std::vector<float> var = graph.read(state()->running_var, channels());
  float eps = options().eps;
  if (options().eps_mode == EpsMode::kClamp) {
    for (float& v : var) v = std::max(v, eps);
    eps = 0;
  }
  std::string y = graph.add(
      "BatchNormalization",
      {graph.tensor(inputs()[0]), constant(affine_.weight(), "weight", 1),
       constant(affine_.bias(), "bias", 0),
       graph.floats("running_mean", extents, graph.read(state()->running_mean, channels())),
       graph.floats("running_var", extents, var)},
      {{"epsilon", eps}});
  if (inputs().size() == 2) y = graph.add("Add", {y, graph.tensor(inputs()[1])});
  if (config_.relu) y = graph.add("Relu", {y});
  return y;
}

}  // namespace lockstep
