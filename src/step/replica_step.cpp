// A replica's share of a step, in the order of the data: scatter, forward, losses, backward,
// gradient exchange and update.

#include <algorithm>
#include <chrono>

#include "core/seconds_since.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/replica.h"

namespace lockstep {
namespace {

const float* images_of(const BatchPart& part, const Shape& input) {
  const std::int64_t per_sample = input.rows_per_sample() * input.channels();
  return part.batch->images.data() + part.begin * per_sample;
}

}  // namespace

void Replica::begin_step(const StepInput& input) {
  communicator_.begin_step(input.step);
  StepTimes& times = times_[static_cast<std::size_t>(input.slot)];
  times = {};
  const auto start = std::chrono::steady_clock::now();
  const double waited = communicator_.exchange_wait_seconds();
  upload_scalars(input);
  scatter(own(input.parts).front(), 0, input.staged);
  do_step(input);
  readback_->start(input.slot);
  if (device().kind == DeviceKind::kCpu) {  // on a GPU streams wait, not the thread
    times.batch_norm_wait = communicator_.exchange_wait_seconds() - waited;
    times.gradient_exchange = exchange_seconds_;
  }
  times.compute = seconds_since(start) - times.batch_norm_wait - times.gradient_exchange;
}

StepOutcome Replica::finish_step(int slot) {
  communicator_.enter("loss", "the device");
  StepOutcome outcome;
  const auto start = std::chrono::steady_clock::now();
  const auto* read = static_cast<const StepSums*>(readback_->wait(slot));
  const auto* apart = reinterpret_cast<const double*>(read + 1);
  outcome.sums = *read;
  outcome.image_losses = {apart, image_losses_};
  outcome.block_squares = {apart + image_losses_, block_squares_};
  outcome.times = times_[static_cast<std::size_t>(slot)];
  outcome.times.compute += seconds_since(start);
  outcome.memory_bytes = backend_->allocated_bytes();
  outcome.peak_memory_bytes = backend_->peak_allocated_bytes();
  return outcome;
}

void Replica::clear_sums() {
  backend_->fill(sums_tensor(), 0);
  if (apart_doubles() > 0) backend_->fill(apart_tensor(), 0);
  backend_->synchronize();
}

// --- scatter ---

std::span<const BatchPart> Replica::own(std::span<const BatchPart> parts) const {
  const auto micro_batches = static_cast<std::size_t>(options_.accumulate);
  return parts.subspan(static_cast<std::size_t>(rank_) * micro_batches, micro_batches);
}

Tensor Replica::staged_images(std::size_t micro, std::int64_t count) const {
  const Shape& planned = options_.input;
  const std::int64_t per_sample = planned.rows_per_sample() * planned.channels();
  float* memory = static_cast<float*>(staged_images_.data()) +
                  static_cast<std::int64_t>(micro) * network_->planned_batch() * per_sample;
  return {memory, planned.with_batch(count)};
}

void Replica::upload_scalars(const StepInput& input) {
  communicator_.enter("scatter", "the batch");
  backend_->upload(bytes_tensor(scalars_.data(), sizeof(StepScalars)), &input.scalars);
}

void Replica::scatter(const BatchPart& part, std::size_t micro, bool staged) {
  network_->set_batch(part.count);
  if (part.count == 0) return;
  if (stages()) {
    if (!staged) stage_part(part, micro);
    backend_->take_staged(staged_images(micro, part.count), network_->input());
    targets_->take_staged(part, micro);
  } else {
    backend_->upload(network_->input(), images_of(part, options_.input));
    targets_->upload(part);
  }
}

void Replica::stage(std::span<const BatchPart> parts) {
  communicator_.enter("staging", "the next batch");
  for (std::size_t micro = 0; const BatchPart& part : own(parts)) stage_part(part, micro++);
}

void Replica::stage_part(const BatchPart& part, std::size_t micro) {
  if (part.count == 0) return;
  backend_->stage(staged_images(micro, part.count), images_of(part, options_.input));
  targets_->stage(part, micro);
}

// --- the work ---

StepContext Replica::context(std::int64_t sample_offset) const {
  return {.communicator = &communicator_,
          .seed = {0, &scalars().dropout_seed},
          .sample_offset = sample_offset,
          .gradient_parts = gradient_parts_};
}

void Replica::do_step(const StepInput& input) {
  switch (input.mode) {
    case StepMode::kIssue:
      return issue_step(input);
    case StepMode::kRecord:
      return record_step(input);
    case StepMode::kReplay:
      return replay_step(input);
  }
}

// On a GPU nothing here waits for the device, and nothing that changes from step to step is an
// argument: that lies in device memory. The first micro-batch has been scattered already.
void Replica::issue_step(const StepInput& input) {
  const std::span<const BatchPart> parts = own(input.parts);
  plan_gradients(input);
  zero_gradients();
  // A loss that is not finite stays: the update of a step that was begun before the host saw it
  // must not be done, either.
  backend_->reset_sums(sums().losses.data(), static_cast<int>(kMaxLosses) + 1);  // and the norm
  if (apart_doubles() > 0) backend_->fill(apart_tensor(), 0);
  for (std::size_t micro = 0; micro + 1 < parts.size(); ++micro) {
    forward_backward(parts[micro], micro, nullptr);
    scatter(parts[micro + 1], micro + 1, input.staged);
  }
  const double reduced = all_reduce_seconds();
  gradients_->begin(input.batch);
  forward_backward(parts.back(), parts.size() - 1,
                   [this](std::size_t layer) { gradients_->layer_done(layer); });
  const auto computed = std::chrono::steady_clock::now();
  exchange_gradients();
  exchange_seconds_ = all_reduce_seconds() - reduced + seconds_since(computed);
}

// Micro-batches and sums that are made everywhere have an order of their own.
void Replica::plan_gradients(const StepInput& input) {
  gradient_parts_.clear();
  if (!backend_->sums_by_image() || gradients_->sums_everywhere() || options_.accumulate > 1) {
    return tree_.plan_by_rank(communicator_.size());
  }
  tree_.plan_by_image(input.parts, input.batch);
  const std::span<const GradientNode> nodes = tree_.nodes_of(rank_);
  store_.reserve_gradient_parts(*backend_, nodes.size());
  const std::int64_t first = nodes.empty() ? 0 : nodes.front().begin;
  for (const GradientNode& node : nodes) {
    gradient_parts_.push_back(
        {node.begin - first, node.end - node.begin, store_.grads_of_part(node.part)});
  }
}

void Replica::zero_gradients() {
  network_->zero_grad();
  for (std::size_t part = 1; part < gradient_parts_.size(); ++part) {
    backend_->fill(Tensor(gradient_parts_[part].grads, Shape{1, store_.elements()}), 0);
  }
}

double Replica::all_reduce_seconds() const {
  return all_reduce_ == nullptr ? 0 : all_reduce_->seconds();
}

void Replica::forward_backward(const BatchPart& part, std::size_t micro,
                               const Network::AfterLayer& after_layer) {
  StepContext step = context(part.sample_offset);
  step.update_running_stats = feeds_statistics(micro);
  communicator_.enter("forward", "the network");
  network_->forward(step);
  compute_losses();
  communicator_.enter("backward", "the network");
  network_->backward(step, after_layer);
}

bool Replica::feeds_statistics(std::size_t micro) const {
  switch (options_.accumulated_statistics) {
    case MicroBatches::kEvery:
      break;
    case MicroBatches::kFirst:
      return micro == 0;
    case MicroBatches::kLast:
      return micro + 1 == static_cast<std::size_t>(options_.accumulate);
  }
  return true;
}

void Replica::compute_losses() {
  DeviceScalar<float> grad_scale = 1.0F;
  if (options_.loss_scale) grad_scale = {0.0F, &sums().scale.scale};
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    losses_[i].forward_backward(*network_, targets_->of(i), {0.0, &scalars().normalizers[i]},
                                grad_scale, &sums().losses[i], image_losses(i));
  }
}

// All ranks have finished their backward pass before the update, and do not start a forward pass
// until all are done.
void Replica::exchange_gradients() {
  const bool summed = gradients_->sums_everywhere();
  if (options_.loss_scale && !summed) check_gradients();
  communicator_.barrier("gradient exchange");
  gradients_->finish();
  if (options_.loss_scale && summed) {
    check_gradients();
    communicator_.barrier("gradient check");
  }
  gradients_->exchange_with_processes(tree_);
  gradients_->update(tree_);
  update_loss_scale();
  communicator_.barrier("weight update");
  gradients_->share_with_processes();
}

// Before a barrier: the updates of all ranks look at all guards.
void Replica::check_gradients() {
  backend_->fill(guard_tensor(), 0);
  const std::size_t parts = std::max<std::size_t>(1, gradient_parts_.size());
  for (std::size_t part = 0; part < parts; ++part) {
    backend_->check_gradients(
        {store_.grads_of_part(part), store_.elements(), sums().losses.data(), &sums().guard});
  }
  for (std::size_t i = 1; i < losses_.size(); ++i) {  // a loss outweighs gradients: it comes later
    backend_->check_gradients({store_.grads(), 0, &sums().losses[i], &sums().guard});
  }
}

void Replica::update_loss_scale() {
  if (!options_.loss_scale) return;
  backend_->update_loss_scale({guards_, &sums().scale, options_.loss_scale->growth_interval});
}

// --- recorded steps ---

void Replica::record_step(const StepInput& input) {
  const auto& batch_norms = store_.batch_norms();
  tracked_.clear();
  for (const auto& state : batch_norms) tracked_.push_back(-state->num_batches_tracked);
  recorder_->record([&] { issue_step(input); });
  for (std::size_t i = 0; i < tracked_.size(); ++i) {
    tracked_[i] += batch_norms[i]->num_batches_tracked;
  }
  recorder_->replay();
}

// The device does all of the step; what the layers keep on the host follows.
void Replica::replay_step(const StepInput& input) {
  recorder_->replay();
  const auto& batch_norms = store_.batch_norms();
  for (std::size_t i = 0; i < batch_norms.size(); ++i) {
    batch_norms[i]->num_batches_tracked += tracked_[i];
  }
  for (BatchNormLayer* layer : network_->batch_norms()) {
    layer->set_local_moments(context(own(input.parts).front().sample_offset));
  }
}

// --- the forward pass alone ---

void Replica::forward(const BatchPart& part) {
  const StepScalars none;
  communicator_.enter("scatter", "the batch");
  backend_->upload(bytes_tensor(scalars_.data(), sizeof(StepScalars)), &none);
  scatter(part, 0, false);
  StepContext step = context(part.sample_offset);
  step.update_running_stats = false;
  network_->forward(step);
  backend_->synchronize();
}

}  // namespace lockstep
