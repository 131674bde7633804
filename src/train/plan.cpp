#include "train/plan.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/percentiles.h"
#include "core/seconds_since.h"
#include "data/data_warnings.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/schedule.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/replica.h"
#include "train/before_training.h"
#include "train/eval_batches.h"
#include "train/replica_readings.h"
#include "train/settled_data.h"
#include "train/training.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmup = 2;
constexpr int kRates = 61;
constexpr std::int64_t kEvaluated = 8;  // images

std::int64_t smallest_share(const std::vector<std::int64_t>& shares) {
  std::int64_t smallest = shares.front();  // torch.chunk's first is the largest
  for (const std::int64_t share : shares) {
    if (share > 0) smallest = std::min(smallest, share);
  }
  return smallest;
}

// Both directions post [parts, 2, C] of fp32 from every rank.
std::int64_t statistics_bytes(DataParallel& replicas) {
  std::int64_t bytes = 0;
  for (int rank = 0; rank < replicas.size(); ++rank) {
    for (const BatchNormLayer* layer : batch_norms_of(replicas.replica(rank).network())) {
      const NormLayer& norm = layer->config().norm;
      if (norm.options.statistics() != StatisticsOf::kDevices) continue;
      for (const StatSlot& slot : layer->local_moments())
        bytes += 2 * slot.parts * 2 * layer->output()->shape.channels() * 4;
    }
  }
  return bytes;
}

std::vector<double> learning_rates(const TrainingPlan& plan) {
  std::vector<double> rates;
  const double base = plan.config.base_learning_rate(static_cast<int>(plan.devices.size()));
  for (std::int64_t i = 0; i < kRates; ++i) {
    const std::int64_t step = i * (plan.steps - 1) / (kRates - 1);
    rates.push_back(learning_rate(plan.config.schedule, base, step, plan.steps));
  }
  return rates;
}

std::vector<std::size_t> memory_of(DataParallel& replicas, bool most) {
  std::vector<std::size_t> bytes;
  for (int rank = 0; rank < replicas.size(); ++rank) {
    const Backend& backend = replicas.replica(rank).backend();
    bytes.push_back(most ? backend.peak_allocated_bytes() : backend.allocated_bytes());
  }
  return bytes;
}

void time_steps(TrainingPlan& plan, DataParallel& replicas, TrainLoader& loader, int timed) {
  const double base = plan.config.base_learning_rate(replicas.size());
  std::vector<double> seconds;
  for (int step = 0; step < kWarmup + timed; ++step) {
    const auto rate = learning_rate(plan.config.schedule, base,
                                    std::min<std::int64_t>(step, plan.steps - 1), plan.steps);
    const Clock::time_point start = Clock::now();
    replicas.train_step(loader.next(), step, static_cast<float>(rate));
    if (step >= kWarmup) seconds.push_back(seconds_since(start));
  }
  plan.step_seconds = percentiles(seconds).median;
}

EvaluationOptions options_of(const Config& config, EvalStats stats) {
  return {normalizer_of(stats), config.windows(stats)};
}

// Each device evaluates the largest batch of every kind that the training will: any of them may
// have to.
void evaluate_largest(const Config& config, DataParallel& replicas, const ValLoader& loader,
                      std::int64_t largest) {
  std::vector<EvalStats> all = evaluated_at_end(config, replicas.size(), false);
  all.push_back(config.bn.eval_stats);
  if (measures_disparity(config, false)) all.push_back(EvalStats::kBatch);
  for (const EvalStats stats : all) {
    const EvalBatches batches = batches_of(stats, config, replicas.size(), loader);
    const std::vector<std::int64_t> images(static_cast<std::size_t>(batches.most()), largest);
    const Batch batch = loader.load(images, config.size_divisor());
    replicas.evaluate(
        std::min<std::int64_t>(replicas.size(), batches.count()),
        [&](std::int64_t /*index*/) { return batch; }, options_of(config, stats));
  }
}

void plan_evaluation(TrainingPlan& plan, DataParallel& replicas, const ValLoader& loader) {
  const int divisor = plan.config.size_divisor();
  const std::int64_t largest = loader.largest(divisor);
  plan.largest_image = loader.dataset().describe(largest);
  plan.largest_size = loader.load(largest, 1, divisor).size;
  try {
    evaluate_largest(plan.config, replicas, loader, largest);
  } catch (const Error& error) {
    throw Error(concat("evaluating the largest image, ", plan.largest_image, ": ", error.what()));
  }
}

// A batch on each device at a time, as an evaluation goes over them. Images of several sizes take
// the time of those that came first.
void time_evaluation(TrainingPlan& plan, DataParallel& replicas, const ValLoader& loader) {
  const EvalStats stats = plan.config.bn.eval_stats;
  const EvalBatches batches = batches_of(stats, plan.config, replicas.size(), loader);
  const std::int64_t some = std::max<std::int64_t>(kEvaluated / batches.most(), replicas.size());
  const std::int64_t count = std::min(some, batches.count());
  std::atomic<std::int64_t> images = 0;
  const auto load = [&](std::int64_t index) {
    const std::vector<std::int64_t> together = batches.images_of(index);
    images += std::ssize(together);
    return loader.load(together, plan.config.size_divisor());
  };
  const EvaluationOptions options = options_of(plan.config, stats);
  replicas.evaluate(count, load, options);  // plans memory
  images = 0;
  const Clock::time_point start = Clock::now();
  replicas.evaluate(count, load, options);
  plan.image_seconds = seconds_since(start) / static_cast<double>(images);
}

double time_precise_batch(const Config& config, DataParallel& replicas) {
  constexpr std::int64_t kBatches = 2;
  TrainLoader loader(config.data, loader_options(config, config.micro_batch(replicas.size())));
  precise_statistics(replicas, loader, 1);  // waits for the loader
  const Clock::time_point start = Clock::now();
  precise_statistics(replicas, loader, kBatches);
  return seconds_since(start) / kBatches;
}

// What would refuse the training is thrown, as by the training.
void warn_as_training(TrainingPlan& plan, const TrainLoader& loader, const ValLoader& val) {
  const Dataset& train = loader.dataset();
  begin_computing(plan.config, plan.devices);
  plan.warnings = check_training(plan.config, plan.devices, World::alone(),
                                 {plan.size, plan.samples_per_epoch, plan.steps_per_epoch});
  check_evaluated_sizes(plan.config, static_cast<int>(plan.devices.size()), val);
  for (const Dataset* dataset : {&train, &val.dataset()}) warn_of_skipped(*dataset, plan.warnings);
  warn_of_padding(loader.unpadded_size(), loader.size(), plan.warnings);
  for (std::string& text : look_at_data(plan.config, train, val.dataset()))
    plan.warnings.push_back(std::move(text));
}

// Of so many steps: every some, and the last.
std::int64_t count_due(std::int64_t steps, std::int64_t every) {
  return every <= 0 ? 1 : (steps + every - 1) / every;
}

// As the trainer makes them.
void count_evaluations(TrainingPlan& plan) {
  const Config& config = plan.config;
  const std::int64_t every = config.run.val_every, save_every = config.run.checkpoint_every;
  const std::int64_t frozen_from = config.bn.freeze_step(plan.steps);
  const bool frozen = frozen_from < plan.steps;
  const std::int64_t validations = count_due(plan.steps, every);
  const std::int64_t chosen = config.ema.decay > 0 ? 2 * validations : validations;
  const std::vector<EvalStats> last =
      evaluated_at_end(config, static_cast<int>(plan.devices.size()), frozen);
  plan.evaluations = chosen + std::ssize(last);
  if (measures_disparity(config, false)) {
    const std::int64_t before = every > 0 ? frozen_from / every : 0;
    plan.evaluations += frozen ? before : validations;
  }
  std::int64_t precise = std::count(last.begin(), last.end(), EvalStats::kPrecise);
  if (config.bn.eval_stats == EvalStats::kPrecise) precise += chosen;
  if (config.ema.decay > 0 && config.ema.statistics == EmaStatistics::kPrecise) {
    precise += validations + count_due(plan.steps, save_every) -
               count_due(plan.steps, std::lcm(every, save_every));
  }
  plan.precise_batches = precise * config.bn.precise_iters;
}

std::size_t sum(const std::vector<std::size_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::size_t{0});
}

}  // namespace

std::vector<NormPlan> plan_norms(const BatchNormConfig& bn, const std::vector<std::int64_t>& shares,
                                 const Network& network) {
  const std::int64_t local = smallest_share(shares);
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  const std::int64_t slice = smallest_share(chunk_sizes(local, bn.virtual_devices));
  std::vector<NormPlan> norms;
  for (const BatchNormLayer* layer : batch_norms_of(network)) {
    if (layer->config().norm.is_frozen()) continue;
    const Shape& shape = layer->output()->shape;
    const std::int64_t height = shape.height();
    const std::int64_t width = shape.width();
    auto same = std::find_if(norms.begin(), norms.end(), [&](const NormPlan& norm) {
      return norm.height == height && norm.width == width;
    });
    if (same == norms.end()) {
      const std::int64_t positions = height * width;
      norms.push_back({.height = height,
                       .width = width,
                       .local = local * positions,
                       .sync = all * positions,
                       .ghost_slice = slice * positions});
      same = norms.end() - 1;
    }
    same->layers.push_back(layer->name());
    same->channels += shape.channels();
  }
  return norms;
}

TrainingPlan plan_training(const Config& written, const std::vector<Device>& devices, int timed) {
  Config config = written;
  settle_data(config);
  LOCKSTEP_CHECK(timed > 0, "a plan times at least one step, not ", timed);
  check_can_be_written(config);
  TrainingPlan plan{.config = config, .devices = devices};
  const auto count = static_cast<int>(devices.size());
  plan.global_batch = config.global_batch(count);
  plan.shares = chunk_sizes(config.micro_batch(count), count);
  TrainLoader loader(config.data, loader_options(config, plan.global_batch));
  const ValLoader val_loader(config.data, config.run.seed);
  plan.size = loader.size();
  plan.train_images = loader.dataset().size();
  plan.val_images = val_loader.size();
  plan.samples_per_epoch = loader.samples_per_epoch();
  plan.steps_per_epoch = loader.batches_per_epoch();
  plan.dropped =
      std::max<std::int64_t>(plan.samples_per_epoch - plan.steps_per_epoch * plan.global_batch, 0);
  plan.steps = config.max_iters(plan.steps_per_epoch);
  count_evaluations(plan);
  plan.rates = learning_rates(plan);
  warn_as_training(plan, loader, val_loader);

  const auto replicas = make_replicas(config, devices, plan.global_batch, plan.size, nullptr);
  if (!config.model.backbone_weights.empty())
    import_weights(*replicas, config.model.backbone_weights, config);
  plan.parameters = replicas->parameter_count();
  const Network& network = replicas->replica(0).network();
  plan.receptive_radius =
      network.receptive_radius(network.output_index("out"), config.architecture().size_divisor);
  plan.layers = network.summary();
  plan.network_bytes = network.planned_bytes();
  plan.offloaded_bytes = network.offloaded_bytes();
  plan.norms = plan_norms(config.bn, plan.shares, network);
  plan.training_bytes = memory_of(*replicas, false);
  plan_evaluation(plan, *replicas, val_loader);
  plan.planned_bytes = memory_of(*replicas, true);
  time_evaluation(plan, *replicas, val_loader);
  const auto callbacks = [&] {
    const SyncGroup& group = replicas->sync_group();
    return group.callbacks(Direction::kForward) + group.callbacks(Direction::kBackward);
  };
  const std::int64_t before = callbacks();
  time_steps(plan, *replicas, loader, timed);
  plan.exchanges = (callbacks() - before) / (kWarmup + timed);
  plan.exchanged_bytes = statistics_bytes(*replicas);
  plan.measured_bytes = memory_of(*replicas, true);
  const double precise = plan.precise_batches > 0 ? time_precise_batch(config, *replicas) : 0;
  plan.total_seconds =
      static_cast<double>(plan.steps) * plan.step_seconds +
      static_cast<double>(plan.evaluations * plan.val_images) * plan.image_seconds +
      static_cast<double>(plan.precise_batches) * precise;
  return plan;
}

std::int64_t largest_batch(const TrainingPlan& plan, std::size_t bytes) {
  const ValLoader val_loader(plan.config.data, plan.config.run.seed);
  const std::int64_t largest_image = val_loader.largest(plan.config.size_divisor());
  const auto planned = [&](std::int64_t batch) {
    Config config = plan.config;
    config.batch.global = batch;
    const auto replicas = make_replicas(config, plan.devices, batch, plan.size, nullptr);
    evaluate_largest(config, *replicas, val_loader, largest_image);
    return static_cast<double>(sum(memory_of(*replicas, true)));
  };
  const auto count = static_cast<std::int64_t>(plan.devices.size());
  // From what builds of one and of two images per device and micro-batch take.
  const std::int64_t unit = count * plan.config.batch.accumulate;
  const double per_image = (planned(2 * unit) - planned(unit)) / static_cast<double>(unit);
  const double spare = static_cast<double>(bytes) - static_cast<double>(sum(plan.measured_bytes));
  const double batch = static_cast<double>(plan.global_batch) + spare / per_image;
  return std::max<std::int64_t>(static_cast<std::int64_t>(std::floor(batch)) / count * count, 0);
}

}  // namespace lockstep
