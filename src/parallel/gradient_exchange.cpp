#include "parallel/gradient_exchange.h"

#include <set>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool share_a_gpu(std::span<const Device> devices) {
  std::set<int> ordinals;
  for (const Device& device : devices) ordinals.insert(device.ordinal);
  return ordinals.size() < devices.size();
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

GradientExchange::GradientExchange(std::span<Replica> replicas, int rank, const SgdOptions& options,
                                   StepMemory memory, std::unique_ptr<BucketedSum> sums)
    : backend_(*replicas[rank].backend),
      rank_(rank),
      memory_(std::move(memory)),
      sums_(std::move(sums)),
      momentum_(options.momentum) {
  const ParameterStore& own = replicas[rank].store;
  const std::span<Replica> updated = sums_ ? replicas.subspan(rank, 1) : replicas;
  ranges_ = owned_ranges(parameter_ranges(own, options), own.elements(), sums_ ? 0 : rank,
                         static_cast<int>(updated.size()));
  begin_ = ranges_.empty() ? 0 : ranges_.front().begin;
  const std::int64_t size = ranges_.empty() ? 0 : ranges_.back().end - begin_;
  for (ParameterRange& range : ranges_) {
    range.begin -= begin_;
    range.end -= begin_;
  }
  for (const Replica& replica : updated) {
    LOCKSTEP_CHECK(replica.store.elements() == own.elements(), "replica ", replica.rank, " has ",
                   replica.store.elements(), " parameter elements, replica ", rank, " has ",
                   own.elements(), ": all replicas are built from one configuration");
    grads_.push_back(replica.store.grads() + begin_);
    weights_.push_back(replica.store.values() + begin_);
  }
  if (size > 0) {
    replicas[rank].velocity = backend_.allocate(static_cast<std::size_t>(size) * sizeof(float));
  }
  velocity_ = Tensor(replicas[rank].velocity.data(), Shape{1, size});
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

void GradientExchange::update() {
  SgdShard shard{.grads = grads_,
                 .weights = weights_,
                 .ranges = ranges_,
                 .lr = {0.0F, memory_.lr},
                 .momentum = momentum_,
                 .losses = memory_.losses,
                 .squared_norm = memory_.squared_norm};
  if (memory_.grad_scale != nullptr) shard.grad_scale = {0.0F, memory_.grad_scale};
  if (velocity_) shard.velocity = velocity_.floats();
  backend_.sgd_update(shard);
}

void GradientExchange::save_velocity(std::span<float> all) const {
  if (!velocity_ || (sums_ && rank_ != 0)) return;
  backend_.download(all.data() + begin_, velocity_);
  backend_.synchronize();
}

void GradientExchange::restore_velocity(std::span<const float> all) {
  if (!velocity_) return;
  backend_.upload(velocity_, all.data() + begin_);
  backend_.synchronize();
}

}  // namespace lockstep
