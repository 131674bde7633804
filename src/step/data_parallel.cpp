// Construction and the training step.

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/check_options.h"
#include "step/data_parallel_impl.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

SyncGroupOptions sync_group_options(const DataParallelOptions& options,
                                    const GradientExchangeChoice& exchange) {
  SyncGroupOptions result = options.communicator;
  result.all_reduce = exchange.kind == GradientExchangeKind::kAllReduce;
  return result;
}

GradientExchangeChoice chosen_exchange(const DataParallelOptions& options) {
  const GradientExchangeKind wanted = options.gradient_exchange.kind;
  const bool open = wanted == GradientExchangeKind::kAuto;
  if (options.placement_invariant && open) {
    return {GradientExchangeKind::kOwner, "sums in one order, as placement invariance asks for"};
  }
  if (options.communicator.world.get().size() > 1 && open) {
    return {GradientExchangeKind::kOwner, "several processes"};
  }
  if (options.cuda_graph && open) {
    return {GradientExchangeKind::kOwner, "a recorded step, which NCCL's sums are no part of"};
  }
  return choose_gradient_exchange(wanted, options.devices);
}

DataParallelOptions checked(DataParallelOptions&& options) {
  check_options(options);
  return std::move(options);
}

void check_step(std::int64_t step, float lr) {
  if (step < 0) throw ConfigError(concat("the steps of a run count from 0, got step ", step));
  if (lr >= 0 && std::isfinite(lr)) return;
  throw ConfigError(concat("step ", step, ": expected a learning rate that is finite and not ",
                           "negative, got ", lr));
}

void check_images(const Batch& batch, const Shape& input) {
  const std::int64_t each = input.rows_per_sample() * input.channels();
  const auto values = static_cast<std::int64_t>(batch.image_values().size());
  LOCKSTEP_CHECK(values == batch.count() * each, "expected ", batch.count() * each,
                 " values of images, ", each, " for each of the ", batch.count(),
                 " samples of the batch, got ", values, "; an input is ",
                 to_string(input.with_batch(1)));
  LOCKSTEP_CHECK(batch.image_view.empty() || batch.images.empty(),
                 "the batch has images and an image_view; give it one of them");
  LOCKSTEP_CHECK(batch.label_view.empty() || batch.labels.empty(),
                 "the batch has labels and a label_view; give it one of them");
}

std::uint64_t dropout_seed(std::uint64_t seed, std::int64_t step) {
  Rng rng(seed, RngPurpose::kDropout, static_cast<std::uint64_t>(step));
  const std::uint64_t high = rng.next_u32();
  return high << 32U | rng.next_u32();
}

}  // namespace

int threads_per_replica(int replicas) {
  LOCKSTEP_CHECK(replicas >= 1, "expected at least 1 replica, got ", replicas);
  return std::max(1, host_threads() / replicas);
}

// --- replicate ---

DataParallel::Impl::Impl(DataParallelOptions&& run_options)
    : options(checked(std::move(run_options))),
      exchange(chosen_exchange(options)),
      sync_group(options.devices, sync_group_options(options, exchange)),
      scatter(options, sync_group.size()),
      shared_labels(sync_group),
      replicas(options.devices.size()),
      outcomes(static_cast<std::size_t>(sync_group.size())),
      rank_steps(outcomes.size()),
      recording_schedule(options.cuda_graph, options.input.batch()) {
  check_process_groups(options, ranks());
  if (options.cuda_graph)
    check_recording(options, exchange, sync_group.recorder(first()) != nullptr);
  group = std::make_unique<ReplicaGroup>(options.devices, sync_group);
}

// An exception of the model is the caller's own, who may look for its type.
void DataParallel::Impl::make_replicas() {
  const int threads = threads_per_replica(rank_layout().own_ranks());
  try {
    group->run([this, threads](int rank) {
      replica_at(rank) = std::make_unique<TrainingReplica>(options, sync_group, rank, threads);
    });
  } catch (const ReplicaError&) {
    try {
      std::rethrow_exception(sync_group.failure());
    } catch (const ModelFailure& failure) {
      std::rethrow_exception(failure.cause());
    } catch (...) {
    }
    throw;
  }
  for (const auto& replica : replicas) check_same_layers(*replicas.front(), *replica);
}

void DataParallel::Impl::build() {
  make_replicas();
  const TrainingReplica& any = *replicas.front();
  if (options.cuda_graph) check_recorded_losses(any.step().losses());
  if (rank_layout().processes() > 1) {
    world_gradients = std::make_unique<WorldGradients>(sync_group, any.store(), any.backend());
  }
  hooked_gradients = std::make_unique<HookedGradients>(options, exchange, sync_group, any.store());
  StepPeers peers;
  peers.world = world_gradients.get();
  peers.hooked = hooked_gradients.get();
  for (const auto& replica : replicas) {
    peers.stores.push_back(&replica->store());
    replica->step().scaler().add_indicators(peers.indicators);
  }
  run([this, peers](TrainingReplica& replica) {
    replica.step().join(peers, exchange);
    if (replica.rank() == 0)
      initialize_parameters(replica.store(), replica.backend(), options.seed);
  });
}

void DataParallel::Impl::check_placement() const {
  const std::string obstacle = placement_obstacle();
  if (!options.placement_invariant || obstacle.empty()) return;
  throw ConfigError(concat("placement_invariant = true asks for results that do not depend on ",
                           "how batches are spread over devices, but ", obstacle,
                           "; change that, or set placement_invariant to false"));
}

DataParallel::DataParallel(DataParallelOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  try {
    impl_->build();
    impl_->check_placement();
    replicate();
    if (impl_->options.loss_scale) set_loss_scale({.scale = impl_->options.loss_scale->initial});
  } catch (...) {
    leave_stuck_threads();
    throw;
  }
}

DataParallel::DataParallel(DataParallel&&) noexcept = default;

// What was here before goes with `old`.
DataParallel& DataParallel::operator=(DataParallel&& other) noexcept {
  DataParallel old(std::move(other));
  std::swap(impl_, old.impl_);
  return *this;
}

// Replicas read each other's memory on the device: none of it goes before all have done what they
// were given, also in a run that failed.
DataParallel::~DataParallel() {
  if (!impl_) return;
  leave_stuck_threads();
  if (!impl_) return;
  for (const auto& replica : impl_->replicas) {
    try {
      if (replica) replica->backend().synchronize();
    } catch (const std::exception&) {  // of a device that is broken: it does nothing any more
    }
  }
}

void DataParallel::leave_stuck_threads() {
  // A thread that could not be stopped still works on the replicas: they must outlive it, so they
  // stay.
  if (impl_->group->has_stuck_thread()) static_cast<void>(impl_.release());
}

void DataParallel::Impl::call_on_replicate() {
  if (!options.on_replicate) return;
  for (int rank = first(); rank < first() + rank_layout().own_ranks(); ++rank) {
    run([this, rank](TrainingReplica& replica) {
      if (replica.rank() != rank) return;
      const ReplicaContext context{
          rank, ranks(), replica.device(), replica.backend(), replica.store(), replica.network()};
      call_named("on_replicate", [&] { options.on_replicate(context); });
    });
  }
}

void DataParallel::replicate() {
  const OneThread::Call call(impl_->caller, "replicate");
  impl_->check_between_steps("replicate");
  if (size() > 1) {
    const auto state = std::make_shared<ReplicaState>();
    impl_->attempt_on_first([state](TrainingReplica& first) { *state = first.read_state(); });
    share_state(impl_->sync_group, *state);
    impl_->run([state](TrainingReplica& replica) {
      if (replica.rank() != 0) replica.write_state(*state);
    });
  }
  if (impl_->options.average_decay > 0) {
    impl_->run([](TrainingReplica& replica) { replica.step().update().begin_average(); });
  }
  impl_->call_on_replicate();
}

void DataParallel::freeze_statistics() {
  impl_->check_between_steps("freeze_statistics");
  if (impl_->options.cuda_graph) {
    throw ConfigError(
        "cuda_graph = true replays a step whose statistics are of the batch, which cannot be "
        "frozen on the way; set it to false, or freeze none");
  }
  replicate();
  impl_->run([](TrainingReplica& replica) {
    for (BatchNormLayer* layer : batch_norms_of(replica.network())) layer->freeze();
  });
}

// --- scatter ---

void DataParallel::Impl::check_batch(const Batch& batch, std::int64_t most,
                                     const char* whose) const {
  const Shape& input = options.input;
  LOCKSTEP_CHECK(batch.count() <= most, "expected at most ", most, " samples, as ", whose,
                 " of the planned input ", to_string(input), ", got ", batch.count());
  LOCKSTEP_CHECK(batch.count() > 0 || batch.image_values().empty(),
                 "Batch::samples is empty, but there ", "are ", batch.image_values().size(),
                 " values of images; give every sample its index in ",
                 "the data set, which also counts them");
  if (input.rank() == 4 && batch.size != Size{}) {
    LOCKSTEP_CHECK(batch.size.height == input.height() && batch.size.width == input.width(),
                   "expected images of ", input.height(), "x", input.width(), ", as in the input ",
                   to_string(input), ", got ", batch.size.height, "x", batch.size.width);
  }
  for (const std::int64_t sample : batch.samples) {
    LOCKSTEP_CHECK(sample >= 0, "expected indices of samples from 0, got ", sample);
  }
  check_images(batch, input);
  replicas.front()->step().input().check(batch);
}

StepScalars DataParallel::Impl::scalars(std::span<const Batch> batches, std::int64_t step,
                                        float lr) {
  StepScalars scalars{
      .dropout_seed = dropout_seed(options.seed, step), .begun = step + 1, .lr = lr};
  for (std::size_t i = 0; i < options.losses.size(); ++i) {
    scalars.normalizers[i] = replicas.front()->step().input().normalizer(i, batches);
  }
  return scalars;
}

// --- parallel_apply ---

void DataParallel::Impl::dispatch(StepInput input) {
  LOCKSTEP_CHECK(under_way.size() < kStepSlots, "step ", input.step, " is begun while ",
                 under_way.size(), " are under way; call finish_step first");
  LOCKSTEP_CHECK(input.batch > 0, "step ", input.step, " got an empty batch; a step needs at ",
                 "least one sample (Batch::samples counts them)");
  input.mode = recording_schedule.next_mode(input);
  input.slot = next_slot;
  begun = input;
  group->run([this](int rank) { replica_at(rank)->step().issue(begun); });
  under_way.push_back({input.step, input.slot});
  next_slot = (input.slot + 1) % kStepSlots;
}

void DataParallel::begin_step(const Batch& batch, std::int64_t step, float lr) {
  const OneThread::Call call(impl_->caller, "begin_step");
  check_step(step, lr);
  impl_->check_batch(batch, impl_->options.input.batch(), "the largest global batch");
  const bool staged = !impl_->staged.empty();
  LOCKSTEP_CHECK(!staged || impl_->staged == batch.samples, "step ", step,
                 " got another batch than the one that was staged for it");
  const StepScalars scalars = impl_->scalars({&impl_->shared_labels.share(batch), 1}, step, lr);
  impl_->staged.clear();
  impl_->dispatch({.step = step,
                   .scalars = scalars,
                   .staged = staged,
                   .batch = batch.count(),
                   .parts = impl_->scatter(batch)});
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step, float lr) {
  const OneThread::Call call(impl_->caller, "train_step");
  impl_->check_between_steps("train_step");
  begin_step(batch, step, lr);
  return finish_step();
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step) {
  return train_step(batch, step, base_learning_rate(impl_->options.optimizer));
}

StepResult DataParallel::train_step(std::span<const Batch> batches, std::int64_t step, float lr) {
  const OneThread::Call call(impl_->caller, "train_step");
  check_step(step, lr);
  impl_->check_between_steps("train_step");
  if (impl_->rank_layout().processes() > 1) {
    throw ConfigError(
        "a batch for each device is for one process; give all processes the whole one");
  }
  LOCKSTEP_CHECK(batches.size() == impl_->replicas.size(), "expected a batch for each of the ",
                 size(), " devices, got ", batches.size());
  const int accumulate = impl_->options.micro_batches();
  const std::int64_t most = impl_->replicas.front()->network().planned_batch() * accumulate;
  std::int64_t count = 0;
  for (const Batch& batch : batches) {
    impl_->check_batch(batch, most, "a device's part of the largest global batch");
    count += batch.count();
  }
  const StepScalars scalars = impl_->scalars(batches, step, lr);
  impl_->staged.clear();
  impl_->dispatch(
      {.step = step, .scalars = scalars, .batch = count, .parts = impl_->scatter(batches)});
  return finish_step();
}

void DataParallel::stage_next(const Batch& batch) {
  const OneThread::Call call(impl_->caller, "stage_next");
  if (!impl_->replicas.front()->step().input().prefetches()) return;
  impl_->check_batch(batch, impl_->options.input.batch(), "the largest global batch");
  const std::span<const BatchPart> parts = impl_->scatter(batch);
  impl_->run([parts](TrainingReplica& replica) { replica.step().prefetch(parts); });
  impl_->staged = batch.samples;
}

void DataParallel::forward(const Batch& batch) {
  const OneThread::Call call(impl_->caller, "forward");
  impl_->check_between_steps("forward");
  impl_->check_batch(
      batch, shard_of(impl_->options.input.batch(), impl_->options.micro_batches(), 0).count,
      "a micro-batch");
  LOCKSTEP_CHECK(batch.count() > 0, "forward got an empty batch; it needs at least one sample");
  impl_->staged.clear();  // this batch takes its place
  impl_->run([&batch, ranks = size()](TrainingReplica& replica) {
    const Shard shard = shard_of(batch.count(), ranks, replica.rank());
    replica.step().forward({&batch, shard.begin, shard.count, shard.begin});
  });
}

// --- gather ---

// After a failure the group runs nothing any more. What the step needs has been issued before.
void DataParallel::Impl::wait_for(const StepUnderWay& step) {
  const auto finish = [this, slot = step.slot](int rank) {
    replica_at(rank)->step().finish(slot, outcomes[static_cast<std::size_t>(rank)]);
  };
  if (!group->has_failed() || group->has_stuck_thread()) return group->run(finish);
  for (const auto& replica : replicas) finish(replica->rank());
}

// They have left the weights alone, but they, their losses and what they did to the running
// statistics have yet to be forgotten.
void DataParallel::Impl::give_up_steps(const StepUnderWay& first_step) {
  under_way.clear();
  if (group->has_failed()) return;
  run([slot = first_step.slot](TrainingReplica& replica) { replica.step().give_up(slot); });
}

StepResult DataParallel::finish_step() {
  const OneThread::Call call(impl_->caller, "finish_step");
  LOCKSTEP_CHECK(!impl_->under_way.empty(), "finish_step without a step that was begun");
  const Impl::StepUnderWay step = impl_->under_way.front();
  impl_->under_way.erase(impl_->under_way.begin());
  impl_->wait_for(step);
  share_by_rank(impl_->sync_group, impl_->outcomes, impl_->outcome_exchange);
  try {
    const bool summed = impl_->exchange.kind == GradientExchangeKind::kAllReduce;
    const StepResult result = gather({step.step, impl_->outcomes, summed, impl_->scale_in_use},
                                     impl_->options, impl_->rank_layout(), impl_->rank_steps);
    if (result.loss_scale) impl_->scale_in_use = result.loss_scale->scale;
    return result;
  } catch (const NonFiniteError&) {
    impl_->give_up_steps(step);
    throw;
  }
}

int DataParallel::steps_ahead() const {
  return impl_->replicas.front()->backend().asynchronous() ? kStepSlots - 1 : 0;
}

void DataParallel::Impl::check_between_steps(const char* what) const {
  LOCKSTEP_CHECK(under_way.empty(), what, " while step ", under_way.front().step,
                 " is under way; call finish_step first");
}

}  // namespace lockstep
