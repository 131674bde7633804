// The step of every rank, in the order of the data: scatter, forward, loss, backward, gradient
// exchange.

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/rng.h"
#include "parallel/data_parallel_impl.h"
#include "parallel/image_upload.h"

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

void DataParallel::Impl::train_rank(int rank, const StepInput& input) {
  Communicator& communicator = communicators->at(rank);
  Network& network = *replicas[rank].network;
  RankOutcome& outcome = outcomes[rank];
  communicators->progress().set_step(rank, input.step);
  const auto start = std::chrono::steady_clock::now();
  const double waited = communicator.exchange_wait_seconds();

  const Shard shard = scatter(rank, input.batch);
  const StepContext step = context(rank, input, shard);
  network.zero_grad();
  communicator.enter("forward", "the network");
  network.forward(step);
  compute_loss(rank, input, shard);
  communicator.enter("backward", "the network");
  network.backward(step);
  outcome.loss = read_loss(rank);
  outcome.times.batch_norm_wait = communicator.exchange_wait_seconds() - waited;
  outcome.times.compute = seconds_since(start) - outcome.times.batch_norm_wait;

  const auto computed = std::chrono::steady_clock::now();
  communicator.barrier("gradient exchange");
  update(rank, input.lr);
  communicator.barrier("weight update");
  outcome.times.gradient_exchange = seconds_since(computed);
}

StepContext DataParallel::Impl::context(int rank, const StepInput& input, const Shard& shard) {
  return {.communicator = &communicators->at(rank),
          .seed = input.dropout_seed,
          .sample_offset = shard.begin};
}

Shard DataParallel::Impl::scatter(int rank, const Batch& batch) {
  communicators->at(rank).enter("scatter", "the batch");
  Backend& backend = *replicas[rank].backend;
  Network& network = *replicas[rank].network;
  const Shard shard = shard_of(batch.count(), ranks(), rank);
  network.set_batch(shard.count);
  if (shard.count == 0) return shard;
  const std::int64_t pixels = shard.begin * batch.size.height * batch.size.width;
  const Shape labels{shard.count, batch.size.height, batch.size.width, 1};
  upload_images(backend, batch.images.data() + 3 * pixels, states[rank].images, network.input());
  backend.upload(Tensor(states[rank].labels.data(), labels, DType::kUInt8),
                 batch.labels.data() + pixels);
  return shard;
}

void DataParallel::Impl::compute_loss(int rank, const StepInput& input, const Shard& shard) {
  Backend& backend = *replicas[rank].backend;
  const Network& network = *replicas[rank].network;
  const RankState& state = states[rank];
  backend.fill(loss_tensor(rank), 0);
  // Not one pixel with a label: nothing to divide by, and nothing to learn.
  if (input.normalizer == 0) return backend.fill(network.output_grad(), 0);
  const Shape labels{shard.count, options.size.height, options.size.width, 1};
  CrossEntropy loss;
  loss.logits = network.output();
  loss.labels = Tensor(state.labels.data(), labels, DType::kUInt8);
  loss.ignore_index = options.ignore_index;
  loss.class_weight = static_cast<const float*>(state.class_weight.data());
  loss.normalizer = input.normalizer;
  loss.grad_logits = network.output_grad();
  loss.loss = static_cast<double*>(state.loss.data());
  backend.cross_entropy(loss);
}

double DataParallel::Impl::read_loss(int rank) {
  double loss = 0;
  replicas[rank].backend->download(&loss, loss_tensor(rank));
  replicas[rank].backend->synchronize();
  return loss;
}

void DataParallel::Impl::update(int rank, float lr) {
  // Every rank sees every rank's loss after the barrier, so all update or none does.
  const bool finite = std::all_of(outcomes.begin(), outcomes.end(), [](const RankOutcome& outcome) {
    return std::isfinite(outcome.loss);
  });
  if (finite) states[rank].gradients->update(lr);
}

StepResult DataParallel::Impl::gather(std::int64_t step) const {
  StepResult result;
  for (int rank = 0; rank < ranks(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    if (!std::isfinite(outcome.loss)) {
      throw NonFiniteError(concat("step ", step, ": the loss of replica ", rank, " (",
                                  to_string(options.devices[rank]), ") is ", outcome.loss,
                                  "; the weights were not changed"));
    }
    const double share = 1.0 / ranks();
    result.loss += outcome.loss;
    result.times.compute += share * outcome.times.compute;
    result.times.batch_norm_wait += share * outcome.times.batch_norm_wait;
    result.times.gradient_exchange += share * outcome.times.gradient_exchange;
  }
  return result;
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step, float lr) {
  impl_->check_batch(batch);
  const StepInput input{batch, step, lr, impl_->normalizer(batch),
                        dropout_seed(impl_->options.seed, step)};
  impl_->group->run([impl = impl_.get(), &input](int rank) { impl->train_rank(rank, input); });
  return impl_->gather(step);
}

void DataParallel::forward(const Batch& batch) {
  impl_->check_batch(batch);
  const StepInput input{.batch = batch};
  impl_->group->run([impl = impl_.get(), &input](int rank) {
    const Shard shard = impl->scatter(rank, input.batch);
    StepContext context = impl->context(rank, input, shard);
    context.update_running_stats = false;
    impl->replicas[rank].network->forward(context);
    impl->replicas[rank].backend->synchronize();
  });
}

}  // namespace lockstep
