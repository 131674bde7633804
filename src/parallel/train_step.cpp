// The step of every rank, in the order of the data: scatter, forward, loss, backward, gradient
// exchange.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/rng.h"
#include "lockstep/nn/layers/batch_norm_layer.h"
#include "parallel/data_parallel_impl.h"

namespace lockstep {
namespace {

std::uint64_t dropout_seed(std::uint64_t seed, std::int64_t step) {
  Rng rng(seed, RngPurpose::kDropout, static_cast<std::uint64_t>(step));
  const std::uint64_t high = rng.next_u32();
  return high << 32U | rng.next_u32();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const float* images_of(const Batch& batch, const Shard& shard) {
  return batch.images.data() + 3 * shard.begin * batch.size.height * batch.size.width;
}

const std::uint8_t* labels_of(const Batch& batch, const Shard& shard) {
  return batch.labels.data() + shard.begin * batch.size.height * batch.size.width;
}

}  // namespace

void DataParallel::Impl::check_batch(const Batch& batch) const {
  const Size size = options.size;
  LOCKSTEP_CHECK(batch.count() <= options.global_batch && batch.size == size, "expected at most ",
                 options.global_batch, " images of ", size.height, "x", size.width, ", got ",
                 batch.count(), " of ", batch.size.height, "x", batch.size.width);
  const auto pixels = static_cast<std::size_t>(batch.count() * size.height * size.width);
  LOCKSTEP_CHECK(batch.images.size() >= 3 * pixels && batch.labels.size() >= pixels,
                 "the batch's images or labels are shorter than its count says");
  LOCKSTEP_CHECK(batch.class_pixels.size() == static_cast<std::size_t>(options.num_classes),
                 "expected pixel counts of ", options.num_classes, " classes, got ",
                 batch.class_pixels.size());
}

double DataParallel::Impl::normalizer(const Batch& batch) const {
  double sum = 0;
  for (std::size_t c = 0; c < batch.class_pixels.size(); ++c) {
    const double weight =
        options.class_weight.empty() ? 1.0 : static_cast<double>(options.class_weight[c]);
    sum += static_cast<double>(batch.class_pixels[c]) * weight;
  }
  return sum;
}

// The first full batch is issued as any other, which makes what is made on first use; the second is
// recorded.
StepMode DataParallel::Impl::next_mode(const Batch& batch) {
  if (!options.cuda_graph || batch.count() != options.global_batch) return StepMode::kIssue;
  const StepMode mode = full_batch;
  full_batch = mode == StepMode::kIssue ? StepMode::kRecord : StepMode::kReplay;
  return mode;
}

void DataParallel::Impl::begin_rank(int rank, const StepInput& input) {
  Communicator& communicator = communicators->at(rank);
  RankOutcome& outcome = outcomes[input.slot][rank];
  communicators->progress().set_step(rank, input.step);
  outcome.times = {};
  const auto start = std::chrono::steady_clock::now();
  const double waited = communicator.exchange_wait_seconds();
  const Shard shard = scatter(rank, input);
  do_step(rank, input, shard);
  states[rank].readback->start(input.slot);
  if (options.devices[rank].kind == DeviceKind::kCpu) {  // on a GPU streams wait, not the thread
    outcome.times.batch_norm_wait = communicator.exchange_wait_seconds() - waited;
    outcome.times.gradient_exchange = outcome.exchange_seconds;
  }
  outcome.times.compute =
      seconds_since(start) - outcome.times.batch_norm_wait - outcome.times.gradient_exchange;
}

// Waits for the device, as nothing before it does.
void DataParallel::Impl::finish_rank(int rank, int slot) {
  communicators->at(rank).enter("loss", "the device");
  RankOutcome& outcome = outcomes[slot][rank];
  const auto start = std::chrono::steady_clock::now();
  outcome.sums = *static_cast<const StepSums*>(states[rank].readback->wait(slot));
  outcome.times.compute += seconds_since(start);
}

// After a failure the group runs nothing any more. What the step needs has been issued before.
void DataParallel::Impl::wait_for(const StepUnderWay& step) {
  const auto finish = [this, &step](int rank) { finish_rank(rank, step.slot); };
  if (!group->has_failed() || group->has_stuck_thread()) return group->run(finish);
  for (int rank = 0; rank < ranks(); ++rank) finish(rank);
}

// They have left the weights alone, but they and their losses have yet to be forgotten.
void DataParallel::Impl::give_up_steps() {
  under_way.clear();
  if (group->has_failed()) return;
  group->run([this](int rank) {
    replicas[rank].backend->fill(sums_tensor(rank), 0);
    replicas[rank].backend->synchronize();
  });
}

void DataParallel::Impl::check_between_steps(const char* what) const {
  LOCKSTEP_CHECK(under_way.empty(), what, " while step ", under_way.front().step,
                 " is under way; call finish_step first");
}

Shard DataParallel::Impl::scatter(int rank, const StepInput& input) {
  communicators->at(rank).enter("scatter", "the batch");
  Backend& backend = *replicas[rank].backend;
  Network& network = *replicas[rank].network;
  const Batch& batch = input.batch;
  const Tensor scalars(states[rank].scalars.data(), Shape{1, sizeof(StepScalars)}, DType::kUInt8);
  backend.upload(scalars, &input.scalars);
  const Shard shard = shard_of(batch.count(), ranks(), rank);
  network.set_batch(shard.count);
  if (shard.count == 0) return shard;
  const RankState& state = states[rank];
  const Tensor labels = label_tensor(state.labels, shard.count, options.size);
  if (stages(rank)) {
    if (!input.staged) stage(rank, batch);
    backend.take_staged(image_tensor(state.staged_images, shard.count, options.size),
                        network.input());
    backend.take_staged(label_tensor(state.staged_labels, shard.count, options.size), labels);
  } else {
    backend.upload(network.input(), images_of(batch, shard));
    backend.upload(labels, labels_of(batch, shard));
  }
  return shard;
}

void DataParallel::Impl::stage(int rank, const Batch& batch) {
  communicators->at(rank).enter("staging", "the next batch");
  const Shard shard = shard_of(batch.count(), ranks(), rank);
  if (shard.count == 0) return;
  Backend& backend = *replicas[rank].backend;
  backend.stage(image_tensor(states[rank].staged_images, shard.count, options.size),
                images_of(batch, shard));
  backend.stage(label_tensor(states[rank].staged_labels, shard.count, options.size),
                labels_of(batch, shard));
}

void DataParallel::Impl::do_step(int rank, const StepInput& input, const Shard& shard) {
  switch (input.mode) {
    case StepMode::kIssue:
      return issue_step(rank, input, shard);
    case StepMode::kRecord:
      return record_step(rank, input, shard);
    case StepMode::kReplay:
      return replay_step(rank, shard);
  }
}

// On a GPU nothing here waits for the device, and nothing that changes from step to step is an
// argument: that lies in device memory.
void DataParallel::Impl::issue_step(int rank, const StepInput& input, const Shard& shard) {
  Communicator& communicator = communicators->at(rank);
  Network& network = *replicas[rank].network;
  GradientExchange& gradients = *states[rank].gradients;
  const StepContext step = context(rank, shard);
  network.zero_grad();
  communicator.enter("forward", "the network");
  network.forward(step);
  compute_loss(rank, shard);
  communicator.enter("backward", "the network");
  const double reduced = communicator.all_reduce_seconds();
  gradients.begin(input.batch.count());
  network.backward(step, [&gradients](std::size_t layer) { gradients.layer_done(layer); });

  const auto computed = std::chrono::steady_clock::now();
  const bool sums = exchange.kind == "all_reduce";
  if (options.loss_scale && !sums) check_gradients(rank);
  communicator.barrier("gradient exchange");
  gradients.finish();
  if (options.loss_scale && sums) {
    check_gradients(rank);
    communicator.barrier("gradient check");
  }
  gradients.update();
  update_loss_scale(rank);
  communicator.barrier("weight update");
  outcomes[input.slot][rank].exchange_seconds =
      communicator.all_reduce_seconds() - reduced + seconds_since(computed);
}

void DataParallel::Impl::record_step(int rank, const StepInput& input, const Shard& shard) {
  std::vector<std::int64_t>& tracked = states[rank].tracked;
  const auto& batch_norms = replicas[rank].store.batch_norms();
  tracked.clear();
  for (const auto& state : batch_norms) tracked.push_back(-state->num_batches_tracked);
  Communicator& communicator = communicators->at(rank);
  communicator.record_step([&] { issue_step(rank, input, shard); });
  for (std::size_t i = 0; i < tracked.size(); ++i) {
    tracked[i] += batch_norms[i]->num_batches_tracked;
  }
  communicator.replay_step();
}

// The device does all of the step; what the layers keep on the host follows.
void DataParallel::Impl::replay_step(int rank, const Shard& shard) {
  communicators->at(rank).replay_step();
  const auto& batch_norms = replicas[rank].store.batch_norms();
  for (std::size_t i = 0; i < batch_norms.size(); ++i) {
    batch_norms[i]->num_batches_tracked += states[rank].tracked[i];
  }
  for (BatchNormLayer* layer : replicas[rank].network->batch_norms()) {
    layer->set_local_moments(context(rank, shard));
  }
}

StepContext DataParallel::Impl::context(int rank, const Shard& shard) {
  return {.communicator = &communicators->at(rank),
          .seed = {0, &scalars(rank).dropout_seed},
          .sample_offset = shard.begin};
}

void DataParallel::Impl::compute_loss(int rank, const Shard& shard) {
  Backend& backend = *replicas[rank].backend;
  const Network& network = *replicas[rank].network;
  const RankState& state = states[rank];
  // A loss that is not finite stays: the update of a step that was begun before the host saw it
  // must not be done, either.
  StepSums& sums = step_sums(rank);
  backend.reset_sums(&sums.loss, 2);  // and the squared norm behind it
  CrossEntropy loss;
  loss.logits = network.output();
  loss.labels = label_tensor(state.labels, shard.count, options.size);
  loss.ignore_index = options.ignore_index;
  loss.class_weight = static_cast<const float*>(state.class_weight.data());
  loss.normalizer = {0.0, &scalars(rank).normalizer};
  loss.grad_logits = network.output_grad();
  loss.loss = &sums.loss;
  if (options.loss_scale) loss.grad_scale = {0.0F, &sums.scale.scale};
  backend.cross_entropy(loss);
}

// Before a barrier: the updates of all ranks look at all guards.
void DataParallel::Impl::check_gradients(int rank) {
  const ParameterStore& store = replicas[rank].store;
  StepSums& sums = step_sums(rank);
  replicas[rank].backend->fill(guard_tensor(rank), 0);
  replicas[rank].backend->check_gradients(
      {store.grads(), store.elements(), &sums.loss, &sums.guard});
}

void DataParallel::Impl::update_loss_scale(int rank) {
  if (!options.loss_scale) return;
  replicas[rank].backend->update_loss_scale(
      {states[rank].guards, &step_sums(rank).scale, options.loss_scale->growth_interval});
}

double DataParallel::Impl::read_loss(int rank) {
  StepSums sums;
  replicas[rank].backend->download(&sums, outcome_tensor(rank));
  replicas[rank].backend->synchronize();
  return sums.loss;
}

double DataParallel::Impl::gradient_norm(int slot) const {
  // With all_reduce every rank has the whole gradient, and its norm.
  const int parts = exchange.kind == "all_reduce" ? 1 : ranks();
  double squares = 0;
  for (int rank = 0; rank < parts; ++rank) squares += outcomes[slot][rank].sums.squared_norm;
  return std::sqrt(squares);
}

StepResult DataParallel::Impl::gather(const StepUnderWay& done) {
  StepResult result;
  for (int rank = 0; rank < ranks(); ++rank) {
    const RankOutcome& outcome = outcomes[done.slot][rank];
    if (!std::isfinite(outcome.sums.loss)) {
      throw NonFiniteError(concat("step ", done.step, ": the loss of replica ", rank, " (",
                                  to_string(options.devices[rank]), ") is ", outcome.sums.loss,
                                  "; the weights were not changed"));
    }
    const double share = 1.0 / ranks();
    result.loss += outcome.sums.loss;
    result.times.compute += share * outcome.times.compute;
    result.times.batch_norm_wait += share * outcome.times.batch_norm_wait;
    result.times.gradient_exchange += share * outcome.times.gradient_exchange;
  }
  judge_gradient(done, result);
  return result;
}

void DataParallel::Impl::judge_gradient(const StepUnderWay& done, StepResult& result) {
  if (options.loss_scale) {
    const std::vector<RankOutcome>& ranks = outcomes[done.slot];
    result.loss_scale = ranks[0].sums.scale;
    result.skipped = std::any_of(ranks.begin(), ranks.end(), [](const RankOutcome& outcome) {
      return outcome.sums.guard != 0;
    });
    const float scale = std::exchange(scale_in_use, result.loss_scale->scale);
    if (result.skipped && scale == 1) {
      throw NonFiniteError(concat("step ", done.step, ": the gradient is not finite although the ",
                                  "loss is and its scale is down at 1; the weights were not ",
                                  "changed"));
    }
  }
  result.grad_norm =
      result.skipped ? std::numeric_limits<double>::quiet_NaN() : gradient_norm(done.slot);
  if (!result.skipped && !std::isfinite(result.grad_norm)) {
    throw NonFiniteError(concat("step ", done.step, ": the gradient is not finite (norm ",
                                result.grad_norm, ") although the loss is; the weights of this ",
                                "step are not to be used, go on from the last checkpoint ",
                                "(--resume)"));
  }
}

void DataParallel::begin_step(const Batch& batch, std::int64_t step, float lr) {
  impl_->check_batch(batch);
  LOCKSTEP_CHECK(impl_->under_way.size() < kStepSlots, "step ", step, " is begun while ",
                 impl_->under_way.size(), " are under way; call finish_step first");
  const bool staged = !impl_->staged.empty();
  LOCKSTEP_CHECK(!staged || impl_->staged == batch.samples, "step ", step,
                 " got another batch than the one that was staged for it");
  impl_->staged.clear();
  const StepInput input{
      .batch = batch,
      .step = step,
      .scalars = {impl_->normalizer(batch), dropout_seed(impl_->options.seed, step), lr},
      .mode = impl_->next_mode(batch),
      .slot = impl_->next_slot,
      .staged = staged};
  impl_->group->run([impl = impl_.get(), &input](int rank) { impl->begin_rank(rank, input); });
  impl_->under_way.push_back({step, input.slot});
  impl_->next_slot = (input.slot + 1) % kStepSlots;
}

void DataParallel::stage_next(const Batch& batch) {
  if (!impl_->stages(0)) return;
  impl_->check_batch(batch);
  impl_->group->run([impl = impl_.get(), &batch](int rank) { impl->stage(rank, batch); });
  impl_->staged = batch.samples;
}

StepResult DataParallel::finish_step() {
  LOCKSTEP_CHECK(!impl_->under_way.empty(), "finish_step without a step that was begun");
  const StepUnderWay step = impl_->under_way.front();
  impl_->under_way.pop_front();
  impl_->wait_for(step);
  try {
    return impl_->gather(step);
  } catch (const NonFiniteError&) {
    impl_->give_up_steps();
    throw;
  }
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step, float lr) {
  impl_->check_between_steps("train_step");
  begin_step(batch, step, lr);
  return finish_step();
}

void DataParallel::forward(const Batch& batch) {
  impl_->check_between_steps("forward");
  impl_->check_batch(batch);
  impl_->staged.clear();  // this batch takes its place
  const StepInput input{.batch = batch};
  impl_->group->run([impl = impl_.get(), &input](int rank) {
    const Shard shard = impl->scatter(rank, input);
    StepContext context = impl->context(rank, shard);
    context.update_running_stats = false;
    impl->replicas[rank].network->forward(context);
    impl->replicas[rank].backend->synchronize();
  });
}

}  // namespace lockstep
