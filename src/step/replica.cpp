#include "step/replica.h"

#include "nn/norms/batch_norm_layer.h"
#include "step/shard.h"

namespace lockstep {
namespace {

/// The largest part of a micro-batch that a replica gets.
std::int64_t planned_batch(const DataParallelOptions& options, int ranks) {
  const std::int64_t micro = shard_of(options.input.batch(), options.accumulate, 0).count;
  return shard_of(micro, ranks, 0).count;
}

PlanOptions training_plan(const DataParallelOptions& options) {
  PlanOptions plan{.training = true, .activations = options.activations};
  for (const NamedLoss& loss : options.losses) plan.grad_outputs.push_back(loss.output);
  return plan;
}

BackendOptions backend_options(const DataParallelOptions& options) {
  BackendOptions result = options.backend;
  result.sums_by_image = result.sums_by_image || options.placement_invariant;
  return result;
}

void check_norm(const DataParallelOptions& options, const Network& network) {
  if (options.norm.frozen || options.norm.options.mode != BatchNormMode::kSync) return;
  std::size_t layers = 0, synced = 0;
  for (const BatchNormLayer* layer : network.batch_norms()) {
    if (layer->config().norm.frozen) continue;
    ++layers;
    if (layer->config().norm.options.mode == BatchNormMode::kSync) ++synced;
  }
  if (layers == 0 || synced > 0) return;
  throw ConfigError(concat("synchronized BatchNorm is asked for, but none of the model's ", layers,
                           " BatchNorm layers is: the model does not call the norm layer that it ",
                           "is given; let it, or wrap it in convert_sync_batchnorm"));
}

}  // namespace

Replica::Replica(const DataParallelOptions& options, SyncGroup& group, int rank, int threads)
    : options_(options),
      layout_(group.rank_layout()),
      communicator_(group.at(rank)),
      all_reduce_(group.all_reduce(rank)),
      recorder_(group.recorder(rank)),
      rank_(rank) {
  communicator_.enter("building", "the replica");
  backend_ = make_backend(device(), threads, backend_options(options));
  communicator_.attach(*backend_);
  const Shape input = options.input.with_batch(planned_batch(options, layout_.ranks()));
  network_ =
      build_network(options.model, options.norm, input, training_plan(options), *backend_, store_);
  check_norm(options, *network_);
  for (const NamedLoss& loss : options.losses) losses_.emplace_back(loss, *network_, *backend_);
  allocate_step_memory();
}

void Replica::allocate_step_memory() {
  const Shape& input = network_->input().shape;
  const auto micro_batches = static_cast<std::size_t>(options_.accumulate);
  if (stages()) {
    staged_images_ = backend_->allocate(micro_batches * sizeof(float) *
                                        static_cast<std::size_t>(input.elements()));
  }
  targets_ = std::make_unique<Targets>(losses_, *network_, stages() ? micro_batches : 0);
  allocate_sums();
  readback_ = backend_->make_readback(outcome_tensor(), kStepSlots);
  scalars_ = backend_->allocate(sizeof(StepScalars));
  if (losses_.front().cross_entropy() == nullptr) return;
  const auto classes = static_cast<std::size_t>(losses_.front().classes());
  confusion_ = backend_->allocate(classes * classes * sizeof(std::int64_t));
}

void Replica::allocate_sums() {
  if (backend_->sums_by_image()) {
    image_losses_ = losses_.size() * static_cast<std::size_t>(network_->planned_batch());
    const std::int64_t owners = all_reduce_ == nullptr ? communicator_.size() : 1;
    const std::int64_t blocks = store_.elements() / kNormBlock + 1;
    block_squares_ = static_cast<std::size_t>(blocks / owners + 1);
  }
  sums_ = backend_->allocate(sizeof(StepSums) + apart_doubles() * sizeof(double));
}

double* Replica::image_losses(std::size_t loss) const {
  if (image_losses_ == 0) return nullptr;
  return reinterpret_cast<double*>(&sums() + 1) + loss * (image_losses_ / losses_.size());
}

double* Replica::block_squares() const {
  if (block_squares_ == 0) return nullptr;
  return reinterpret_cast<double*>(&sums() + 1) + image_losses_;
}

void Replica::add_losses(std::vector<const double*>& losses) const {
  if (options_.loss_scale) return losses.push_back(&sums().guard);
  for (std::size_t i = 0; i < losses_.size(); ++i) losses.push_back(&sums().losses[i]);
}

void Replica::join(std::span<const std::unique_ptr<Replica>> replicas,
                   const GradientExchangeChoice& exchange, WorldGradients* world) {
  std::unique_ptr<BucketedSum> bucketed;
  if (exchange.kind == "all_reduce") {
    bucketed = std::make_unique<BucketedSum>(
        *all_reduce_, store_.grads(), plan_gradient_buckets(*network_, options_.gradient_exchange));
  }
  StepMemory memory;
  memory.lr = &scalars().lr;
  memory.begun = &scalars().begun;
  memory.block_squares = block_squares();
  if (memory.block_squares == nullptr) memory.squared_norm = &sums().squared_norm;
  if (options_.loss_scale) {
    memory.grad_scale = &sums().scale.inverse;
    memory.skipped = &sums().scale.skipped;
  }
  std::vector<ParameterStore*> stores;
  for (const auto& peer : replicas) {
    stores.push_back(&peer->store_);
    peer->add_losses(memory.losses);
  }
  if (world != nullptr) join(*world, memory.losses);
  if (options_.loss_scale) guards_ = memory.losses;
  gradients_ = std::make_unique<GradientExchange>(
      *backend_, GradientPeers{stores, layout_.first_rank(), layout_.ranks(), world}, rank_,
      options_.optimizer, options_.parameter_groups, std::move(memory), std::move(bucketed));
}

void Replica::join(WorldGradients& world, std::vector<const double*>& losses) {
  const int own = rank_ - layout_.first_rank();
  if (device().kind != DeviceKind::kCpu) {
    std::vector<const double*> own_losses;
    add_losses(own_losses);
    const auto [begin, end] = world.owned(own);
    world_staging_ = std::make_unique<WorldStaging>(*backend_, store_, own_losses, begin, end);
    world.join(own, *world_staging_);
  }
  losses.push_back(world.losses(own));
}

// --- state, between steps ---

Tensor Replica::all_values() const { return {store_.values(), Shape{1, store_.elements()}}; }

Tensor Replica::all_statistics() const {
  return {store_.statistics(), Shape{1, store_.statistics_elements()}};
}

ReplicaState Replica::read_state() const {
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

void Replica::write_state(const ReplicaState& state) {
  backend_->upload(all_values(), state.values.data());
  if (!state.statistics.empty()) {
    backend_->upload(all_statistics(), state.statistics.data());
  }
  for (std::size_t i = 0; i < state.tracked.size(); ++i) {
    store_.batch_norms()[i]->num_batches_tracked = state.tracked[i];
  }
  backend_->synchronize();
}

LossScaleState Replica::loss_scale() const {
  LossScaleState state;
  backend_->download(&state, scale_tensor());
  backend_->synchronize();
  return state;
}

void Replica::set_loss_scale(const LossScaleState& state) {
  backend_->upload(scale_tensor(), &state);
  backend_->synchronize();
}

}  // namespace lockstep
