#include "parallel/gradient_exchange.h"

#include "lockstep/core/check.h"

namespace lockstep {

GradientExchange::GradientExchange(std::span<Replica> replicas, int rank, const SgdOptions& options,
                                   const float* lr, std::vector<const double*> losses)
    : backend_(*replicas[rank].backend),
      lr_(lr),
      losses_(std::move(losses)),
      momentum_(options.momentum) {
  const ParameterStore& own = replicas[rank].store;
  ranges_ = owned_ranges(parameter_ranges(own, options), own.elements(), rank,
                         static_cast<int>(replicas.size()));
  begin_ = ranges_.empty() ? 0 : ranges_.front().begin;
  const std::int64_t size = ranges_.empty() ? 0 : ranges_.back().end - begin_;
  for (ParameterRange& range : ranges_) {
    range.begin -= begin_;
    range.end -= begin_;
  }
  for (const Replica& replica : replicas) {
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

void GradientExchange::update() {
  SgdShard shard{.grads = grads_,
                 .weights = weights_,
                 .lr = {0.0F, lr_},
                 .momentum = momentum_,
                 .losses = losses_};
  if (velocity_) shard.velocity = velocity_.floats();
  for (const ParameterRange& range : ranges_) {
    shard.begin = range.begin;
    shard.end = range.end;
    shard.weight_decay = range.weight_decay;
    backend_.sgd_update(shard);
  }
}

}  // namespace lockstep
