// Construction and the training step.

#include <algorithm>
#include <exception>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "step/check_options.h"
#include "step/data_parallel_impl.h"

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
    return {GradientExchangeKind::kOwner, "sums in one order (run.placement_invariant)"};
  }
  if (options.communicator.world.get().size() > 1 && open) {
    return {GradientExchangeKind::kOwner, "several processes"};
  }
  return choose_gradient_exchange(wanted, options.devices);
}

std::uint64_t dropout_seed(std::uint64_t seed, std::int64_t step) {
  Rng rng(seed, RngPurpose::kDropout, static_cast<std::uint64_t>(step));
  const std::uint64_t high = rng.next_u32();
  return high << 32U | rng.next_u32();
}

}  // namespace

int threads_per_replica(int replicas) { return std::max(1, host_threads() / replicas); }

// --- replicate ---

DataParallel::Impl::Impl(DataParallelOptions&& run_options)
    : options(std::move(run_options)),
      exchange(chosen_exchange(options)),
      sync_group(options.devices, sync_group_options(options, exchange)),
      scatter(options, sync_group.size()),
      shared_outcomes(sync_group),
      shared_labels(sync_group),
      replicas(options.devices.size()),
      outcomes(static_cast<std::size_t>(sync_group.size())),
      rank_steps(outcomes.size()),
      recording_schedule(options.cuda_graph, options.input.batch()) {
  check_options(options, ranks());
  if (options.cuda_graph)
    check_recording(options, exchange, sync_group.recorder(first()) != nullptr);
  group = std::make_unique<ReplicaGroup>(options.devices, sync_group);
}

void DataParallel::Impl::build() {
  const int threads = threads_per_replica(rank_layout().own_ranks());
  group->run([&](int rank) {
    replica_at(rank) = std::make_unique<Replica>(options, sync_group, rank, threads);
  });
  const Replica& any = *replicas.front();
  if (rank_layout().processes() > 1) {
    world_gradients = std::make_unique<WorldGradients>(sync_group, any.store(), any.backend());
  }
  StepPeers peers;
  peers.world = world_gradients.get();
  for (const auto& replica : replicas) {
    peers.stores.push_back(&replica->store());
    replica->step().scaler().add_indicators(peers.indicators);
  }
  run([&](Replica& replica) {
    replica.step().join(peers, exchange);
    if (replica.rank() == 0)
      initialize_parameters(replica.store(), replica.backend(), options.seed);
  });
}

void DataParallel::Impl::check_placement() const {
  const std::string obstacle = placement_obstacle();
  if (!options.placement_invariant || obstacle.empty()) return;
  throw ConfigError(concat("run.placement_invariant = true asks for results that do not depend on ",
                           "how batches are spread over devices, but ", obstacle,
                           "; change that, or set run.placement_invariant to false"));
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

// Replicas read each other's memory on the device: none of it goes before all have done what they
// were given, also in a run that failed.
DataParallel::~DataParallel() {
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
    run([&](Replica& replica) {
      if (replica.rank() != rank) return;
      options.on_replicate(
          {rank, ranks(), replica.device(), replica.backend(), replica.store(), replica.network()});
    });
  }
}

void DataParallel::replicate() {
  impl_->check_between_steps("replicate");
  if (size() > 1) {
    ReplicaState state;
    impl_->run_on_first([&](Replica& first) { state = first.read_state(); });
    share_state(impl_->sync_group, state);
    impl_->run([&](Replica& replica) {
      if (replica.rank() != 0) replica.write_state(state);
    });
  }
  impl_->call_on_replicate();
}

void DataParallel::freeze_statistics() {
  impl_->check_between_steps("freeze_statistics");
  if (impl_->options.cuda_graph) {
    throw ConfigError(
        "run.cuda_graph = true replays a step whose statistics are of the batch, which cannot be "
        "frozen on the way; set it to false, or leave out bn.freeze_at");
  }
  replicate();
  impl_->run([](Replica& replica) { replica.step().freeze_statistics(); });
}

// --- scatter ---

void DataParallel::Impl::check_batch(const Batch& batch, std::int64_t most) const {
  const Shape& input = options.input;
  const bool images = input.rank() == 4 && batch.size != Size{};
  const bool fits =
      !images || (batch.size.height == input.height() && batch.size.width == input.width());
  LOCKSTEP_CHECK(batch.count() <= most && fits, "expected at most ", most, " samples for an input ",
                 "of ", to_string(input), ", got ", batch.count(), " of ", batch.size.height, "x",
                 batch.size.width);
  const auto samples = static_cast<std::size_t>(batch.count());
  const auto rows = static_cast<std::size_t>(input.rows_per_sample());
  LOCKSTEP_CHECK(batch.images.size() >= samples * rows * static_cast<std::size_t>(input.channels()),
                 "the batch's images are shorter than its count says");
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
  input.mode = recording_schedule.next_mode(input);
  input.slot = next_slot;
  group->run([this, &input](int rank) { replica_at(rank)->step().issue(input); });
  under_way.push_back({input.step, input.slot});
  next_slot = (input.slot + 1) % kStepSlots;
}

void DataParallel::begin_step(const Batch& batch, std::int64_t step, float lr) {
  impl_->check_batch(batch, impl_->options.input.batch());
  const bool staged = !impl_->staged.empty();
  LOCKSTEP_CHECK(!staged || impl_->staged == batch.samples, "step ", step,
                 " got another batch than the one that was staged for it");
  impl_->staged.clear();
  impl_->dispatch({.step = step,
                   .scalars = impl_->scalars({&impl_->shared_labels.share(batch), 1}, step, lr),
                   .staged = staged,
                   .batch = batch.count(),
                   .parts = impl_->scatter(batch)});
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step, float lr) {
  impl_->check_between_steps("train_step");
  begin_step(batch, step, lr);
  return finish_step();
}

StepResult DataParallel::train_step(const Batch& batch, std::int64_t step) {
  return train_step(batch, step, base_learning_rate(impl_->options.optimizer));
}

StepResult DataParallel::train_step(std::span<const Batch> batches, std::int64_t step, float lr) {
  impl_->check_between_steps("train_step");
  if (impl_->rank_layout().processes() > 1) {
    throw ConfigError(
        "a batch for each device is for one process; give all processes the whole one");
  }
  LOCKSTEP_CHECK(batches.size() == impl_->replicas.size(), "expected a batch for each of the ",
                 size(), " devices, got ", batches.size());
  const int accumulate = impl_->options.accumulate;
  const std::int64_t most = impl_->replicas.front()->network().planned_batch() * accumulate;
  std::int64_t count = 0;
  for (const Batch& batch : batches) {
    impl_->check_batch(batch, most);
    count += batch.count();
  }
  impl_->staged.clear();
  impl_->dispatch({.step = step,
                   .scalars = impl_->scalars(batches, step, lr),
                   .batch = count,
                   .parts = impl_->scatter(batches)});
  return finish_step();
}

void DataParallel::stage_next(const Batch& batch) {
  if (!impl_->replicas.front()->step().input().prefetches()) return;
  impl_->check_batch(batch, impl_->options.input.batch());
  const std::span<const BatchPart> parts = impl_->scatter(batch);
  impl_->run([parts](Replica& replica) { replica.step().prefetch(parts); });
  impl_->staged = batch.samples;
}

void DataParallel::forward(const Batch& batch) {
  impl_->check_between_steps("forward");
  impl_->check_batch(batch,
                     shard_of(impl_->options.input.batch(), impl_->options.accumulate, 0).count);
  impl_->staged.clear();  // this batch takes its place
  impl_->run([&](Replica& replica) {
    const Shard shard = shard_of(batch.count(), size(), replica.rank());
    replica.step().forward({&batch, shard.begin, shard.count, shard.begin});
  });
}

// --- gather ---

// After a failure the group runs nothing any more. What the step needs has been issued before.
void DataParallel::Impl::wait_for(const StepUnderWay& step) {
  const auto finish = [this, &step](Replica& replica) {
    outcomes[static_cast<std::size_t>(replica.rank())] = replica.step().finish(step.slot);
  };
  if (!group->has_failed() || group->has_stuck_thread()) return run(finish);
  for (const auto& replica : replicas) finish(*replica);
}

// They have left the weights alone, but they and their losses have yet to be forgotten.
void DataParallel::Impl::give_up_steps() {
  under_way.clear();
  if (group->has_failed()) return;
  run([](Replica& replica) { replica.step().clear(); });
}

StepResult DataParallel::finish_step() {
  LOCKSTEP_CHECK(!impl_->under_way.empty(), "finish_step without a step that was begun");
  const Impl::StepUnderWay step = impl_->under_way.front();
  impl_->under_way.erase(impl_->under_way.begin());
  impl_->wait_for(step);
  impl_->shared_outcomes.share(impl_->outcomes);
  try {
    const bool summed = impl_->exchange.kind == GradientExchangeKind::kAllReduce;
    const StepResult result = gather({step.step, impl_->outcomes, summed, impl_->scale_in_use},
                                     impl_->options, impl_->rank_layout(), impl_->rank_steps);
    if (result.loss_scale) impl_->scale_in_use = result.loss_scale->scale;
    return result;
  } catch (const NonFiniteError&) {
    impl_->give_up_steps();
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
