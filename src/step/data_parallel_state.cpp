// Evaluation, and what a run is between its steps.

#include <atomic>
#include <cstring>
#include <map>

#include "lockstep/core/check.h"
#include "step/data_parallel_impl.h"

namespace lockstep {

void DataParallel::Impl::attempt(const std::function<void(int rank)>& work) {
  rank_layout().processes() > 1 ? group->run(work) : group->attempt(work);
}

// --- evaluation ---

/// What the replicas share in an evaluation. Every image and every rank has an entry of its own: no
/// order of arrival can matter. The last thread that has it frees it: one that does not return
/// after a failure may outlive the call.
struct DataParallel::Impl::EvaluationWork {
  std::function<Batch(std::int64_t index)> load;
  EvaluationOptions options;
  std::vector<EvalOutcome> batches;
  std::vector<std::vector<std::int64_t>> confusions;  // [own rank]
  std::atomic<bool> failed{false};                    // the others need not go on
};

void DataParallel::Impl::evaluate_own(EvaluationWork& work, int rank) {
  Validation& validation = replica_at(rank)->validation();
  try {
    validation.begin();
    for (auto index = static_cast<std::size_t>(rank); index < work.batches.size() && !work.failed;
         index += static_cast<std::size_t>(ranks())) {
      work.batches[index] =
          validation.evaluate(work.load(static_cast<std::int64_t>(index)), work.options);
    }
    work.confusions[static_cast<std::size_t>(rank - first())] = validation.end();
  } catch (...) {
    work.failed = true;
    throw;
  }
}

DataParallel::EvalResult DataParallel::evaluate(
    std::int64_t count, const std::function<Batch(std::int64_t index)>& load,
    const EvaluationOptions& options) {
  const OneThread::Call call(impl_->caller, "evaluate");
  impl_->check_between_steps("evaluate");
  LOCKSTEP_CHECK(count >= 0, "expected a number of batches to evaluate, got ", count);
  LOCKSTEP_CHECK(load != nullptr, "the function that loads the batches of an evaluation is null");
  const auto work = std::make_shared<Impl::EvaluationWork>();
  work->load = load;
  work->options = options;
  work->batches.resize(static_cast<std::size_t>(count));
  work->confusions.resize(impl_->replicas.size());
  impl_->attempt([impl = impl_.get(), work](int rank) { impl->evaluate_own(*work, rank); });
  auto& batches = work->batches;
  const auto& confusions = work->confusions;

  EvalResult result;
  result.confusion.resize(confusions.front().size());
  for (const auto& confusion : confusions) {
    for (std::size_t i = 0; i < confusion.size(); ++i) result.confusion[i] += confusion[i];
  }
  share_evaluation(impl_->sync_group, batches, result.confusion);
  std::int64_t terms = 0;
  for (const EvalOutcome& batch : batches) {
    result.loss += batch.loss;
    terms += batch.terms;
    result.top5 += batch.top5;
    result.mismatch += batch.mismatch;
  }
  result.loss = terms == 0 ? 0 : result.loss / static_cast<double>(terms);
  return result;
}

// --- state: through host memory, so that replicas may live on any mix of devices ---

TensorMap DataParallel::state_dict() {
  const OneThread::Call call(impl_->caller, "state_dict");
  impl_->check_between_steps("state_dict");
  const auto tensors = std::make_shared<TensorMap>();
  impl_->attempt_on_first([tensors](TrainingReplica& first) {
    *tensors = lockstep::state_dict(first.store(), first.backend());
  });
  return std::move(*tensors);
}

TensorMap DataParallel::averaged_state_dict() {
  LOCKSTEP_CHECK(impl_->options.average_decay > 0, "this run has no average of its weights");
  TensorMap tensors = state_dict();
  const OptimizerState state = optimizer_state();
  const auto put = [&tensors](const std::string& name, const float* values) {
    HostTensor& tensor = tensors.at(name);
    std::memcpy(tensor.data.data(), values, tensor.data.size());
  };
  const ParameterStore& store = impl_->replicas.front()->store();
  const float* const average = state.slots.at(kAverageSlot).data();
  for (const auto& parameter : store.parameters())
    put(parameter->name, average + parameter->offset);
  const auto averaged = state.slots.find(kAveragedStatisticsSlot);
  if (averaged == state.slots.end()) return tensors;
  const float* const statistics = averaged->second.data();
  for (const auto& layer : store.batch_norms()) {
    if (layer->slice_of != nullptr) continue;  // no part of a state_dict
    put(layer->name + ".running_mean", statistics + (layer->running_mean - store.statistics()));
    put(layer->name + ".running_var", statistics + (layer->running_var - store.statistics()));
  }
  return tensors;
}

ImportSummary DataParallel::load_state_dict(const TensorMap& tensors, bool strict) {
  const OneThread::Call call(impl_->caller, "load_state_dict");
  impl_->check_between_steps("load_state_dict");
  const auto summary = std::make_shared<ImportSummary>();
  impl_->attempt_on_first([summary, &tensors, strict](TrainingReplica& first) {
    if (first.rank() != 0) return;
    *summary = lockstep::load_state_dict(tensors, first.store(), first.backend(), strict);
  });
  replicate();
  return std::move(*summary);
}

OptimizerState DataParallel::optimizer_state() {
  const OneThread::Call call(impl_->caller, "optimizer_state");
  impl_->check_between_steps("optimizer_state");
  const auto shared = std::make_shared<OptimizerState>();
  OptimizerState& state = *shared;
  state.optimizer = optimizer_name(impl_->options.optimizer);
  const DataParallelOptions& options = impl_->options;
  const ParameterStore& store = impl_->replicas.front()->store();
  const auto elements = static_cast<std::size_t>(store.elements());
  for (const std::string& slot : optimizer_slots(options.optimizer)) {
    state.slots[slot].resize(elements);
  }
  if (options.average_decay > 0) {
    state.slots[kAverageSlot].resize(elements);
    if (options.averages_statistics) {
      state.slots[kAveragedStatisticsSlot].resize(
          static_cast<std::size_t>(store.statistics_elements()));
    }
  }
  impl_->run([shared](TrainingReplica& replica) { replica.step().update().save_state(*shared); });
  share_optimizer_state(impl_->sync_group, state);
  return std::move(state);
}

void DataParallel::set_optimizer_state(const OptimizerState& state) {
  const OneThread::Call call(impl_->caller, "set_optimizer_state");
  impl_->check_between_steps("set_optimizer_state");
  const std::string own = optimizer_name(impl_->options.optimizer);
  if (state.optimizer != own) {
    throw DataError(concat("the optimizer's state is of '", state.optimizer,
                           "', this run trains with '", own, "'"));
  }
  const ParameterStore& store = impl_->replicas.front()->store();
  std::map<std::string, std::int64_t> expected;  // [name] values
  for (const std::string& slot : optimizer_slots(impl_->options.optimizer)) {
    expected[slot] = store.elements();
  }
  if (state.slots.contains(kAverageSlot)) expected[kAverageSlot] = store.elements();
  if (state.slots.contains(kAveragedStatisticsSlot)) {
    expected[kAveragedStatisticsSlot] = store.statistics_elements();
  }
  for (const auto& [slot, elements] : expected) {
    const auto found = state.slots.find(slot);
    const std::size_t size = found == state.slots.end() ? 0 : found->second.size();
    if (static_cast<std::int64_t>(size) == elements) continue;
    throw DataError(concat("the optimizer's state has ", size, " values of ", slot,
                           ", this network needs ", elements));
  }
  impl_->run([&state](TrainingReplica& replica) { replica.step().update().restore_state(state); });
}

std::optional<LossScaleState> DataParallel::loss_scale() {
  const OneThread::Call call(impl_->caller, "loss_scale");
  impl_->check_between_steps("loss_scale");
  if (!impl_->options.loss_scale) return std::nullopt;
  const auto state = std::make_shared<LossScaleState>();
  impl_->attempt_on_first(
      [state](TrainingReplica& first) { *state = first.step().scaler().state(); });
  return *state;
}

void DataParallel::set_loss_scale(const LossScaleState& state) {
  const OneThread::Call call(impl_->caller, "set_loss_scale");
  impl_->check_between_steps("set_loss_scale");
  LOCKSTEP_CHECK(impl_->options.loss_scale, "this run has no loss scale");
  LossScaleState copied = state;
  copied.inverse = 1.0F / state.scale;
  impl_->scale_in_use = state.scale;
  impl_->run([copied](TrainingReplica& replica) { replica.step().scaler().set_state(copied); });
}

int DataParallel::size() const { return impl_->ranks(); }
const RankLayout& DataParallel::rank_layout() const { return impl_->rank_layout(); }
const DataParallelOptions& DataParallel::options() const { return impl_->options; }
const GradientExchangeChoice& DataParallel::gradient_exchange() const { return impl_->exchange; }

std::string DataParallel::placement_obstacle() const { return impl_->placement_obstacle(); }
const SyncGroup& DataParallel::sync_group() const { return impl_->sync_group; }

std::int64_t DataParallel::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& parameter : impl_->replicas.front()->store().parameters()) {
    count += parameter->elements;
  }
  return count;
}

void DataParallel::for_each_replica(const std::function<void(Replica&)>& work) {
  const OneThread::Call call(impl_->caller, "for_each_replica");
  impl_->check_between_steps("for_each_replica");
  LOCKSTEP_CHECK(work != nullptr, "the work for the replicas is null");
  impl_->run([work, &group = impl_->sync_group](TrainingReplica& replica) {
    group.at(replica.rank()).enter("working", "for_each_replica");
    work(replica);
  });
}

Replica& DataParallel::replica(int rank) {
  static_cast<void>(impl_->sync_group.at(rank));  // which says whose ranks are here
  return *impl_->replica_at(rank);
}

Replica& DataParallel::own_replica() { return *impl_->replica_at(rank_layout().first_rank()); }

void DataParallel::all_gather(std::span<const std::byte> own, std::vector<Bytes>& all) {
  impl_->sync_group.all_gather(own, all);
}

bool DataParallel::has_stuck_thread() const { return impl_->group->has_stuck_thread(); }

}  // namespace lockstep
