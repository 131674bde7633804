#include "step/weight_update.h"

#include "lockstep/core/check.h"
#include "step/parameter_ranges.h"

namespace lockstep {
namespace {

/// Restores the average from what the state has under its name, from element `begin` on; a state
/// without it makes the average start over.
void restore(AveragedWeights& average, const OptimizerState& all, const char* slot,
             std::int64_t begin) {
  const auto found = all.slots.find(slot);
  if (found == all.slots.end()) return average.restart();
  average.restore(found->second.data() + begin);
}

}  // namespace

WeightUpdate::WeightUpdate(const DataParallelOptions& options, const UpdateShare& share,
                           const ParameterStore& own, Backend& backend, const StepScalars& scalars,
                           const StepTotals& totals, const LossScaler& scaler,
                           HookedGradients& hooked, Communicator& communicator)
    : backend_(backend),
      optimizer_(options.optimizer),
      scalars_(scalars),
      totals_(totals),
      scaler_(scaler),
      hook_(hooked, share, own.elements(), backend),
      clip_(options.gradient_clipping, own.elements(), share, backend, communicator),
      saves_(share.saves) {
  ranges_ = owned_ranges(parameter_ranges(own, optimizer_, options.parameter_groups),
                         own.elements(), share.owner, share.owners);
  const ElementRange owned = owned_range(own.elements(), share.owner, share.owners);
  begin_ = owned.begin;
  const std::int64_t size = ranges_.empty() ? 0 : ranges_.back().end - begin_;
  for (ParameterRange& range : ranges_) {
    range.begin -= begin_;
    range.end -= begin_;
  }
  for (const ParameterStore* store : share.stores) {
    LOCKSTEP_CHECK(store->elements() == own.elements(), "a replica has ", store->elements(),
                   " parameter elements, replica ", share.rank, " has ", own.elements(),
                   ": a model declares the same layers on every replica");
    if (store != &own) weights_.push_back(store->values() + begin_);
  }
  // First, where the update reads them: the others may lie on other devices.
  weights_.insert(weights_.begin(), own.values() + begin_);
  allocate_slots(size);
  average_.emplace(options.average_decay, own.values() + begin_, owned.size(), backend_);
  const bool averages = options.averages_statistics && share.rank == 0;
  averaged_statistics_.emplace(averages ? options.average_decay : 0, own.statistics(),
                               own.statistics_elements(), backend_);
}

void WeightUpdate::allocate_slots(std::int64_t elements) {
  const std::size_t count = optimizer_slots(optimizer_).size();
  slot_of_.resize(count);
  if (elements == 0) return;
  // Every array of the state starts as its memory does, at a multiple of 64 floats.
  const std::int64_t stride = (elements + 63) / 64 * 64;
  slots_ = backend_.allocate(count * static_cast<std::size_t>(stride) * sizeof(float));
  for (std::size_t slot = 0; slot < count; ++slot) {
    float* memory = static_cast<float*>(slots_.data()) + static_cast<std::int64_t>(slot) * stride;
    slot_of_[slot] = Tensor(memory, Shape{1, elements});
  }
}

void WeightUpdate::apply(GradientReducer& reducer, std::span<const double* const> indicators) {
  const GradientSum sum = reducer.sum(begin_);
  double* const blocks = totals_.block_squares();
  OptimizerShard shard{.grads = sum.parts,
                       .joins = sum.joins,
                       .weights = weights_,
                       .ranges = ranges_,
                       .lr = {0.0F, &scalars_.lr},
                       .optimizer = optimizer_,
                       .updates = {{0, &scalars_.begun}, scaler_.skipped()},
                       .losses = indicators,
                       .squared_norm = blocks == nullptr ? &totals_.sums().squared_norm : nullptr,
                       .block_squares = blocks,
                       .grad_scale = scaler_.inverse()};
  for (std::size_t slot = 0; slot < slot_of_.size(); ++slot) {
    if (slot_of_[slot]) shard.state[slot] = slot_of_[slot].floats();
  }
  hook_.change(shard);
  clip_.bound(shard);
  backend_.optimizer().optimizer_update(shard);
  average_->follow(shard);
  averaged_statistics_->follow(shard);
  average_begun_ = true;
}

void WeightUpdate::begin_average() {
  if (average_begun_) return;
  average_->restart();
  averaged_statistics_->restart();
}

void WeightUpdate::save_state(OptimizerState& all) const {
  if (!saves_) return;
  const std::vector<std::string> names = optimizer_slots(optimizer_);
  for (std::size_t slot = 0; slot < names.size(); ++slot) {
    if (!slot_of_[slot]) continue;
    backend_.download(all.slots.at(names[slot]).data() + begin_, slot_of_[slot]);
  }
  if (average_->any()) average_->save(all.slots.at(kAverageSlot).data() + begin_);
  if (averaged_statistics_->any()) {
    averaged_statistics_->save(all.slots.at(kAveragedStatisticsSlot).data());
  }
  backend_.synchronize();
}

void WeightUpdate::restore_state(const OptimizerState& all) {
  const std::vector<std::string> names = optimizer_slots(optimizer_);
  for (std::size_t slot = 0; slot < names.size(); ++slot) {
    if (!slot_of_[slot]) continue;
    backend_.upload(slot_of_[slot], all.slots.at(names[slot]).data() + begin_);
  }
  restore(*average_, all, kAverageSlot, begin_);
  restore(*averaged_statistics_, all, kAveragedStatisticsSlot, 0);
  average_begun_ = true;
  backend_.synchronize();
}

}  // namespace lockstep
