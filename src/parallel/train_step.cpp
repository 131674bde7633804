// The step of every rank, in the order of the data: scatter, forward, loss, backward, gradient
// exchange.

#include <chrono>
#include <cmath>

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
  RankOutcome& outcome = outcomes[rank];
  communicators->progress().set_step(rank, input.step);
  outcome.times = {};
  const auto start = std::chrono::steady_clock::now();
  const double waited = communicator.exchange_wait_seconds();
  const Shard shard = scatter(rank, input);
  do_step(rank, input, shard);
  if (options.devices[rank].kind == DeviceKind::kCpu) {  // on a GPU streams wait, not the thread
    outcome.times.batch_norm_wait = communicator.exchange_wait_seconds() - waited;
    outcome.times.gradient_exchange = outcome.exchange_seconds;
  }
  outcome.times.compute =
      seconds_since(start) - outcome.times.batch_norm_wait - outcome.times.gradient_exchange;
}

// Waits for the device, as nothing before it does.
void DataParallel::Impl::finish_rank(int rank) {
  communicators->at(rank).enter("loss", "the device");
  const auto start = std::chrono::steady_clock::now();
  outcomes[rank].sums = read_sums(rank);
  outcomes[rank].times.compute += seconds_since(start);
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
  communicator.barrier("gradient exchange");
  gradients.finish();
  gradients.update();
  communicator.barrier("weight update");
  outcomes[rank].exchange_seconds =
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
  backend.fill(sums_tensor(rank), 0);
  CrossEntropy loss;
  loss.logits = network.output();
  loss.labels = label_tensor(state.labels, shard.count, options.size);
  loss.ignore_index = options.ignore_index;
  loss.class_weight = static_cast<const float*>(state.class_weight.data());
  loss.normalizer = {0.0, &scalars(rank).normalizer};
  loss.grad_logits = network.output_grad();
  loss.loss = &step_sums(rank).loss;
  backend.cross_entropy(loss);
}

StepSums DataParallel::Impl::read_sums(int rank) {
  StepSums sums;
  replicas[rank].backend->download(&sums, sums_tensor(rank));
  replicas[rank].backend->synchronize();
  return sums;
}

double DataParallel::Impl::gradient_norm() const {
  // With all_reduce every rank has the whole gradient, and its norm.
  const int parts = exchange.kind == "all_reduce" ? 1 : ranks();
  double squares = 0;
  for (int rank = 0; rank < parts; ++rank) squares += outcomes[rank].sums.squared_norm;
  return std::sqrt(squares);
}

StepResult DataParallel::Impl::gather(std::int64_t step) const {
  StepResult result;
  for (int rank = 0; rank < ranks(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    if (!std::isfinite(outcome.sums.loss)) {
      throw NonFiniteError(concat("step ", step, ": the loss of replica ", rank, " (",
                                  to_string(options.devices[rank]), ") is ", outcome.sums.loss,
                                  "; the weights were not changed"));
    }
    const double share = 1.0 / ranks();
    result.loss += outcome.sums.loss;
    result.times.compute += share * outcome.times.compute;
    result.times.batch_norm_wait += share * outcome.times.batch_norm_wait;
    result.times.gradient_exchange += share * outcome.times.gradient_exchange;
  }
  result.grad_norm = gradient_norm();
  if (!std::isfinite(result.grad_norm)) {
    throw NonFiniteError(concat("step ", step, ": the gradient is not finite (norm ",
                                result.grad_norm, ") although the loss is; the weights of this ",
                                "step are not to be used, go on from the last checkpoint ",
                                "(--resume)"));
  }
  return result;
}

void DataParallel::begin_step(const Batch& batch, std::int64_t step, float lr) {
  impl_->check_batch(batch);
  const bool staged = !impl_->staged.empty();
  LOCKSTEP_CHECK(!staged || impl_->staged == batch.samples, "step ", step,
                 " got another batch than the one that was staged for it");
  impl_->staged.clear();
  impl_->last_step = step;
  const StepInput input{
      .batch = batch,
      .step = step,
      .scalars = {impl_->normalizer(batch), dropout_seed(impl_->options.seed, step), lr},
      .mode = impl_->next_mode(batch),
      .staged = staged};
  impl_->group->run([impl = impl_.get(), &input](int rank) { impl->begin_rank(rank, input); });
}

void DataParallel::stage_next(const Batch& batch) {
  if (!impl_->stages(0)) return;
  impl_->check_batch(batch);
  impl_->group->run([impl = impl_.get(), &batch](int rank) { impl->stage(rank, batch); });
  impl_->staged = batch.samples;
}

StepResult DataParallel::finish_step() {
  impl_->group->run([impl = impl_.get()](int rank) { impl->finish_rank(rank); });
  return impl_->gather(impl_->last_step);
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step, float lr) {
  begin_step(batch, step, lr);
  return finish_step();
}

void DataParallel::forward(const Batch& batch) {
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
