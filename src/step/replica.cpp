#include "step/replica.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "step/check_declared.h"
#include "step/parameter_ranges.h"
#include "step/scatter.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

/// The most samples of a micro-batch that a replica gets.
std::int64_t planned_batch(const DataParallelOptions& options, int ranks) {
  const std::int64_t micro = shard_of(options.input.batch(), options.micro_batches(), 0).count;
  return shard_of(micro, ranks, 0).count;
}

// Micro-batches that are together are tiles of a batch.
PlanOptions training_plan(const DataParallelOptions& options, std::int64_t batch) {
  const int tiles = options.accumulate / options.micro_batches();
  PlanOptions plan{.training = true,
                   .activations = options.precision,
                   .recompute = options.recompute,
                   .tile = shard_of(batch, tiles, 0).count,
                   .offload = options.offload};
  plan.is_frozen = [&groups = options.parameter_groups](const std::string& parameter) {
    return is_frozen(parameter, groups);
  };
  std::set<std::string> outputs;
  for (const NamedLoss& loss : options.losses) {
    if (outputs.insert(loss.output).second) plan.grad_outputs.push_back(loss.output);
  }
  return plan;
}

BackendOptions backend_options(const DataParallelOptions& options) {
  BackendOptions result = options.backend;
  result.sums_by_image = result.sums_by_image || options.placement_invariant;
  return result;
}

/// The model, whose exceptions are marked as its own.
Model marked(const Model& model) {
  return [&model](NetworkBuilder& net, Value* input, const NormLayer& norm) {
    try {
      return model(net, input, norm);
    } catch (const ConfigError&) {
      throw;
    } catch (const DataError&) {
      throw;
    } catch (const NonFiniteError&) {
      throw;
    } catch (...) {
      throw ModelFailure(std::current_exception());
    }
  };
}

std::string declared(const Parameter& parameter) {
  return concat("the parameter ", parameter.name, " ", to_string(parameter.shape));
}
std::string declared(const BatchNormState& state) {
  return concat("the running statistics ", state.name, " of ", state.channels, " channels");
}

bool same(const Parameter& a, const Parameter& b) {
  return a.name == b.name && a.shape == b.shape && a.kind == b.kind;
}
bool same(const BatchNormState& a, const BatchNormState& b) {
  return a.name == b.name && a.channels == b.channels;
}

template <typename Items>
void check_same(const Items& first, int first_rank, const Items& other, int other_rank) {
  const auto what = [](const Items& items, std::size_t i) {
    return i < items.size() ? declared(*items[i]) : std::string("nothing more");
  };
  for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
    if (i < std::min(first.size(), other.size()) && same(*first[i], *other[i])) continue;
    throw ConfigError(concat("replica ", other_rank, " declares ", what(other, i),
                             " where replica ", first_rank, " declares ", what(first, i),
                             ": a model declares the same layers on every replica"));
  }
}

}  // namespace

ModelFailure::ModelFailure(std::exception_ptr cause)
    : Error(describe(cause)), cause_(std::move(cause)) {}

void check_same_layers(const Replica& first, const Replica& other) {
  const ParameterStore &a = first.store(), &b = other.store();
  check_same(a.parameters(), first.rank(), b.parameters(), other.rank());
  check_same(a.batch_norms(), first.rank(), b.batch_norms(), other.rank());
}

TrainingReplica::TrainingReplica(const DataParallelOptions& options, SyncGroup& group, int rank,
                                 int threads)
    : Replica(rank) {
  const RankLayout& layout = group.rank_layout();
  Communicator& communicator = group.at(rank);
  communicator.enter("building", "the replica");
  backend_ = make_backend(layout.devices[static_cast<std::size_t>(rank)], threads,
                          backend_options(options));
  communicator.attach(*backend_);
  const Shape input = options.input.with_batch(planned_batch(options, layout.ranks()));
  network_ = build_network(marked(options.model), options.norm, input,
                           training_plan(options, input.batch()), *backend_, store_);
  const auto norms = batch_norms_of(*network_);
  check_norm_layers(options, std::vector<const BatchNormLayer*>(norms.begin(), norms.end()));
  step_ = std::make_unique<TrainStep>(options, group, rank, *network_);
  validation_ = std::make_unique<Validation>(options, communicator, *backend_, store_,
                                             *step_->losses().front());
}

Tensor TrainingReplica::all_values() const {
  return {store_.values(), Shape{1, store_.elements()}};
}

Tensor TrainingReplica::all_statistics() const {
  return {store_.statistics(), Shape{1, store_.statistics_elements()}};
}

ReplicaState TrainingReplica::read_state() const {
  ReplicaState state{std::vector<float>(static_cast<std::size_t>(store_.elements())),
                     std::vector<float>(static_cast<std::size_t>(store_.statistics_elements())),
                     {}};
  backend_->download(state.values.data(), all_values());
  if (!state.statistics.empty()) {
    backend_->download(state.statistics.data(), all_statistics());
  }
  for (const auto& layer : store_.batch_norms()) {
    state.tracked.push_back(layer->num_batches_tracked);
  }
  backend_->synchronize();
  return state;
}

void TrainingReplica::write_state(const ReplicaState& state) {
  backend_->upload(all_values(), state.values.data());
  if (!state.statistics.empty()) {
    backend_->upload(all_statistics(), state.statistics.data());
  }
  for (std::size_t i = 0; i < state.tracked.size(); ++i) {
    store_.batch_norms()[i]->num_batches_tracked = state.tracked[i];
  }
  backend_->synchronize();
}

}  // namespace lockstep
