#include "step/gradient_exchange.h"

#include <set>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool share_a_gpu(std::span<const Device> devices) {
  std::set<int> ordinals;
  for (const Device& device : devices) ordinals.insert(device.ordinal);
  return ordinals.size() < devices.size();
}

UpdateRule rule_of(const Sgd& sgd, const StepMemory&) { return SgdRule{sgd.momentum}; }

UpdateRule rule_of(const AdamW& adamw, const StepMemory& memory) {
  return AdamWRule{adamw.beta1, adamw.beta2, adamw.eps, {0, memory.begun}, memory.skipped};
}

}  // namespace

GradientExchangeChoice choose_gradient_exchange(const std::string& wanted,
                                                std::span<const Device> devices,
                                                const GpuAllReduce* gpus) {
  if (wanted == "owner" || wanted == "all_reduce") return {wanted, "as asked"};
  if (wanted != "auto") {
    throw ConfigError(concat("unknown run.gradient_exchange = \"", wanted,
                             "\"; expected auto, owner or all_reduce"));
  }
  if (devices.size() < 2) return {"owner", "one replica"};
  if (devices.front().kind == DeviceKind::kCpu) return {"owner", "replicas on the CPU"};
  if (share_a_gpu(devices)) return {"owner", "replicas share a GPU"};
  if (gpus == nullptr) return {"owner", "no NCCL in this build"};
  if (gpus->reach_each_other(devices)) return {"owner", "all GPUs reach each other's memory"};
  return {"all_reduce", "not all GPUs reach each other's memory"};
}

GradientExchange::GradientExchange(Backend& backend, const GradientPeers& peers, int rank,
                                   const Optimizer& optimizer,
                                   std::span<const ParameterGroup> groups, StepMemory memory,
                                   std::unique_ptr<BucketedSum> sums)
    : backend_(backend),
      rank_(rank),
      first_rank_(peers.first_rank),
      world_(peers.world),
      memory_(std::move(memory)),
      sums_(std::move(sums)),
      optimizer_(optimizer) {
  const auto own_index = static_cast<std::size_t>(rank - first_rank_);
  const ParameterStore& own = *peers.stores[own_index];
  const auto updated = sums_ ? peers.stores.subspan(own_index, 1) : peers.stores;
  ranges_ = owned_ranges(parameter_ranges(own, optimizer, groups), own.elements(), sums_ ? 0 : rank,
                         sums_ ? 1 : peers.ranks);
  begin_ = ranges_.empty() ? 0 : ranges_.front().begin;
  const std::int64_t size = ranges_.empty() ? 0 : ranges_.back().end - begin_;
  for (ParameterRange& range : ranges_) {
    range.begin -= begin_;
    range.end -= begin_;
  }
  for (const ParameterStore* store : updated) {
    LOCKSTEP_CHECK(store->elements() == own.elements(), "a replica has ", store->elements(),
                   " parameter elements, replica ", rank, " has ", own.elements(),
                   ": a model declares the same layers on every replica");
    stores_.push_back(store);
    weights_.push_back(store->values() + begin_);
  }
  allocate_slots(size);
}

void GradientExchange::allocate_slots(std::int64_t elements) {
  const std::size_t count = optimizer_slots(optimizer_).size();
  slot_of_.resize(count);
  if (elements == 0) return;
  // Every slot starts as its memory does, at a multiple of 64 floats.
  const std::int64_t stride = (elements + 63) / 64 * 64;
  slots_ = backend_.allocate(count * static_cast<std::size_t>(stride) * sizeof(float));
  for (std::size_t slot = 0; slot < count; ++slot) {
    float* memory = static_cast<float*>(slots_.data()) + static_cast<std::int64_t>(slot) * stride;
    slot_of_[slot] = Tensor(memory, Shape{1, elements});
  }
}

void GradientExchange::begin(std::int64_t batch) {
  if (sums_) sums_->begin(batch);
}

void GradientExchange::layer_done(std::size_t layer) {
  if (sums_) sums_->layer_done(layer);
}

void GradientExchange::finish() {
  if (sums_) sums_->finish();
}

void GradientExchange::exchange_with_processes(const GradientTree& tree) {
  if (world_ == nullptr) return;
  const int own = rank_ - first_rank_;
  sums_ ? world_->exchange_losses(own) : world_->exchange(own, tree);
}

void GradientExchange::share_with_processes() {
  if (world_ != nullptr && !sums_) world_->share_weights(rank_ - first_rank_);
}

void GradientExchange::collect_gradients(const GradientTree& tree) {
  grads_.clear();
  if (sums_) return grads_.push_back(stores_.front()->grads() + begin_);
  if (world_ != nullptr) return world_->parts_from(rank_ - first_rank_, begin_, grads_);
  for (const GradientNode& node : tree.nodes()) {
    grads_.push_back(stores_[static_cast<std::size_t>(node.rank)]->grads_of_part(node.part) +
                     begin_);
  }
}

void GradientExchange::update(const GradientTree& tree) {
  collect_gradients(tree);
  const bool in_tree = !sums_ && backend_.sums_by_image();
  const std::span<const int> joins = world_ != nullptr ? world_->joins() : tree.joins();
  OptimizerShard shard{
      .grads = grads_,
      .joins = in_tree ? joins : std::span<const int>(),
      .weights = weights_,
      .ranges = ranges_,
      .lr = {0.0F, memory_.lr},
      .rule = std::visit([&](const auto& any) { return rule_of(any, memory_); }, optimizer_),
      .losses = memory_.losses,
      .squared_norm = memory_.squared_norm,
      .block_squares = memory_.block_squares};
  if (memory_.grad_scale != nullptr) shard.grad_scale = {0.0F, memory_.grad_scale};
  for (std::size_t slot = 0; slot < slot_of_.size(); ++slot) {
    if (slot_of_[slot]) shard.state[slot] = slot_of_[slot].floats();
  }
  backend_.optimizer_update(shard);
}

void GradientExchange::save_state(OptimizerState& all) const {
  if (sums_ && rank_ != first_rank_) return;
  const std::vector<std::string> names = optimizer_slots(optimizer_);
  for (std::size_t slot = 0; slot < names.size(); ++slot) {
    if (!slot_of_[slot]) continue;
    backend_.download(all.slots.at(names[slot]).data() + begin_, slot_of_[slot]);
  }
  backend_.synchronize();
}

void GradientExchange::restore_state(const OptimizerState& all) {
  const std::vector<std::string> names = optimizer_slots(optimizer_);
  for (std::size_t slot = 0; slot < names.size(); ++slot) {
    if (!slot_of_[slot]) continue;
    backend_.upload(slot_of_[slot], all.slots.at(names[slot]).data() + begin_);
  }
  backend_.synchronize();
}

}  // namespace lockstep
