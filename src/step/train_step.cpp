#include "step/train_step.h"

#include <algorithm>
#include <chrono>

#include "core/profiler.h"
#include "core/seconds_since.h"
#include "step/world_reducer.h"

namespace lockstep {
namespace {

/// The last micro-batch that has images on any rank: of a small batch, those behind it have none.
std::size_t last_with_images(std::span<const BatchPart> parts, std::size_t micro_batches) {
  std::size_t last = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].count > 0) last = std::max(last, i % micro_batches);
  }
  return last;
}

bool feeds_statistics(MicroBatches which, std::size_t micro, std::size_t last) {
  switch (which) {
    case MicroBatches::kEvery:
    case MicroBatches::kTogether:
      break;
    case MicroBatches::kFirst:
      return micro == 0;
    case MicroBatches::kLast:
      return micro == last;
  }
  return true;
}

}  // namespace

// --- set-up ---

TrainStep::TrainStep(const DataParallelOptions& options, SyncGroup& group, int rank,
                     Network& network)
    : options_(options),
      group_(group),
      communicator_(group.at(rank)),
      rank_(rank),
      network_(network),
      backend_(network.backend()),
      losses_(options.losses, network),
      input_(losses(), network, options),
      totals_(backend_, losses().size(), fixed_order_sums()),
      scalars_(backend_.allocate(sizeof(StepScalars))),
      scaler_(options.loss_scale, backend_, totals_.sums(), losses().size()),
      recording_(group.recorder(rank), network),
      statistics_(network.parameters(), backend_) {}

FixedOrderSums TrainStep::fixed_order_sums() const {
  if (!backend_.sums_by_image()) return {};
  const std::int64_t owners = group_.all_reduce(rank_) == nullptr ? communicator_.size() : 1;
  const std::int64_t blocks = network_.parameters().elements() / kNormBlock + 1;
  return {static_cast<std::size_t>(network_.planned_batch()),
          static_cast<std::size_t>(blocks / owners + 1)};
}

void TrainStep::join(const StepPeers& peers, const GradientExchangeChoice& exchange) {
  indicators_ = peers.indicators;
  reducer_ = make_reducer(peers, exchange);
  scaler_.set_indicators(indicators_);
  update_ =
      std::make_unique<WeightUpdate>(options_, reducer_->share(), network_.parameters(), backend_,
                                     scalars(), totals_, scaler_, *peers.hooked, communicator_);
}

std::unique_ptr<GradientReducer> TrainStep::make_reducer(const StepPeers& peers,
                                                         const GradientExchangeChoice& exchange) {
  const GradientRank rank{.rank = rank_,
                          .first = group_.rank_layout().first_rank(),
                          .communicator = communicator_,
                          .backend = backend_,
                          .store = network_.parameters(),
                          .process = peers.stores,
                          .image_parts = backend_.sums_by_image() && options_.micro_batches() == 1};
  const bool bucketed = exchange.kind == GradientExchangeKind::kAllReduce;
  std::vector<GradientBucket> buckets;
  if (bucketed) buckets = plan_gradient_buckets(network_, options_.gradient_exchange);
  AllReduce* const all_reduce = group_.all_reduce(rank_);
  if (peers.world == nullptr) {
    if (!bucketed) return std::make_unique<ShardedReducer>(rank);
    return std::make_unique<BucketedReducer>(rank, *all_reduce, std::move(buckets));
  }
  std::vector<const double*> own;
  scaler_.add_indicators(own);
  auto mirror = make_host_mirror(backend_, network_.parameters(), std::move(own));
  indicators_.push_back(mirror->others_indicator());
  if (!bucketed) {
    return std::make_unique<ShardedWorldReducer>(rank, *peers.world, std::move(mirror));
  }
  return std::make_unique<BucketedWorldReducer>(rank, *all_reduce, std::move(buckets), *peers.world,
                                                std::move(mirror));
}

// --- a step ---

std::span<const BatchPart> TrainStep::own(std::span<const BatchPart> parts) const {
  const auto micro_batches = static_cast<std::size_t>(options_.micro_batches());
  return parts.subspan(static_cast<std::size_t>(rank_) * micro_batches, micro_batches);
}

void TrainStep::prefetch(std::span<const BatchPart> parts) {
  communicator_.enter("staging", "the next batch");
  for (std::size_t micro = 0; const BatchPart& part : own(parts)) input_.prefetch(part, micro++);
}

void TrainStep::upload_scalars(const StepScalars& scalars) {
  communicator_.enter("scatter", "the batch");
  backend_.upload(bytes_tensor(scalars_.data(), sizeof(StepScalars)), &scalars);
}

void TrainStep::issue(const StepInput& input) {
  const ProfiledRange range("step", input.step);
  communicator_.begin_step(input.step);
  steps_[static_cast<std::size_t>(input.slot)] = input.step;
  StepTimes& times = times_[static_cast<std::size_t>(input.slot)];
  times = {};
  const auto start = std::chrono::steady_clock::now();
  const BatchPart& first = own(input.parts).front();
  upload_scalars(input.scalars);
  input_.load(first, 0, input.staged);
  statistics_.save(input.slot);
  recording_.run(input.mode, context(first.sample_offset), [this, &input] { compute(input); });
  totals_.start_readback(input.slot);
  if (!backend_.asynchronous()) {  // else streams wait, not the thread
    times.batch_norm_wait = batch_norm_wait_;
    times.gradient_exchange = exchange_seconds_;
  }
  times.compute = seconds_since(start) - times.batch_norm_wait - times.gradient_exchange;
}

StepContext TrainStep::context(std::int64_t sample_offset) const {
  return {.communicator = communicator_,
          .seed = {0, &scalars().dropout_seed},
          .sample_offset = sample_offset,
          .gradient_parts = gradient_parts_};
}

// On a GPU nothing here waits for the device, and nothing that changes from step to step is an
// argument: that lies in device memory. The first micro-batch has been loaded already.
void TrainStep::compute(const StepInput& input) {
  const std::span<const BatchPart> micro_batches = own(input.parts);
  const std::size_t last = micro_batches.size() - 1;
  const std::size_t last_filled = last_with_images(input.parts, micro_batches.size());
  gradient_parts_ = reducer_->begin(input);
  zero_gradients();
  totals_.begin();
  const double reduced = reducer_->seconds(), waited = communicator_.exchange_wait_seconds();
  for (std::size_t micro = 0; micro <= last; ++micro) {
    if (micro > 0) input_.load(micro_batches[micro], micro, input.staged);
    StepContext step = context(micro_batches[micro].sample_offset);
    step.update_running_stats =
        feeds_statistics(options_.accumulated_statistics, micro, last_filled);
    communicator_.enter("forward", "the network");
    network_.forward(step);
    losses_.compute({input_, scalars(), scaler_, totals_, communicator_});
    communicator_.enter("backward", "the network");
    const auto layer_done = [this](std::size_t layer) { reducer_->layer_done(layer); };
    network_.backward(step, micro == last ? Network::AfterLayer(layer_done) : nullptr);
  }
  exchange_seconds_ = reducer_->seconds() - reduced;
  batch_norm_wait_ = communicator_.exchange_wait_seconds() - waited;
  const auto computed = std::chrono::steady_clock::now();
  const ProfiledRange range("gradients and update");
  reducer_->reduce(scaler_);
  update_->apply(*reducer_, indicators_);
  scaler_.update();
  reducer_->publish();
  exchange_seconds_ += seconds_since(computed);
}

void TrainStep::zero_gradients() {
  network_.zero_grad();
  for (std::size_t part = 1; part < gradient_parts_.size(); ++part) {
    const Shape all{1, network_.parameters().elements()};
    backend_.fill(Tensor(gradient_parts_[part].grads, all), 0);
  }
}

void TrainStep::give_up(int slot) {
  statistics_.restore(slot);
  totals_.clear();
}

void TrainStep::finish(int slot, StepOutcome& outcome) {
  communicator_.begin_step(steps_[static_cast<std::size_t>(slot)]);  // a later one may be issued
  communicator_.enter("loss", "the device");
  const auto start = std::chrono::steady_clock::now();
  totals_.read(slot, outcome);
  outcome.times = times_[static_cast<std::size_t>(slot)];
  outcome.times.compute += seconds_since(start);
  outcome.memory_bytes = backend_.allocated_bytes();
  outcome.peak_memory_bytes = backend_.peak_allocated_bytes();
}

// --- the forward pass alone ---

void TrainStep::forward(const BatchPart& part) {
  upload_scalars({});
  input_.load(part, 0, false);
  StepContext step = context(part.sample_offset);
  step.update_running_stats = false;
  network_.forward(step);
  backend_.synchronize();
}

}  // namespace lockstep
