#include "train/plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/seconds_since.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/optim/schedule.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/replica.h"
#include "train/before_training.h"
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
  std::sort(seconds.begin(), seconds.end());
  plan.step_seconds = seconds[seconds.size() / 2];
}

EvaluationOptions windows_of(const TrainingPlan& plan) {
  return {.windows = plan.config.windows(plan.config.bn.eval_stats)};
}

// Each device evaluates the largest image: any of them may have to.
void plan_evaluation(TrainingPlan& plan, DataParallel& replicas, const ValLoader& loader) {
  const auto divisor = static_cast<int>(plan.config.architecture().size_divisor);
  const std::int64_t largest = loader.largest(divisor);
  const Batch batch = loader.load(largest, 1, divisor);
  plan.largest_image = loader.dataset().describe(largest);
  plan.largest_size = batch.size;
  try {
    replicas.evaluate(
        replicas.size(), [&](std::int64_t /*index*/) { return batch; }, windows_of(plan));
  } catch (const Error& error) {
    throw Error(concat("evaluating the largest image, ", plan.largest_image, ": ", error.what()));
  }
}

// An image on each device at a time, as an evaluation goes over them. Images of several sizes take
// the time of those that came first.
void time_evaluation(TrainingPlan& plan, DataParallel& replicas, const ValLoader& loader) {
  const auto divisor = static_cast<int>(plan.config.architecture().size_divisor);
  const std::int64_t count = std::min<std::int64_t>(kEvaluated, loader.size());
  const auto load = [&](std::int64_t index) { return loader.load(index, 1, divisor); };
  const EvaluationOptions options = windows_of(plan);
  replicas.evaluate(count, load, options);  // plans memory
  const Clock::time_point start = Clock::now();
  replicas.evaluate(count, load, options);
  plan.image_seconds = seconds_since(start) / static_cast<double>(count);
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

std::int64_t count_evaluations(const Config& config, std::int64_t steps) {
  const std::int64_t every = config.run.val_every;
  if (every <= 0) return 1;
  return (steps + every - 1) / every;
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
  TrainLoader loader(config.data, {.batch = plan.global_batch,
                                   .drop_last = config.batch.drop_last,
                                   .seed = config.run.seed,
                                   .divisor = config.size_divisor()});
  const ValLoader val_loader(config.data, config.run.seed);
  plan.size = loader.size();
  plan.train_images = loader.dataset().size();
  plan.val_images = val_loader.size();
  plan.samples_per_epoch = loader.samples_per_epoch();
  plan.steps_per_epoch = loader.batches_per_epoch();
  plan.dropped =
      std::max<std::int64_t>(plan.samples_per_epoch - plan.steps_per_epoch * plan.global_batch, 0);
  plan.steps = config.max_iters(plan.steps_per_epoch);
  plan.evaluations = count_evaluations(config, plan.steps);
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
  plan.planned_bytes = memory_of(*replicas, false);
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
  plan.total_seconds = static_cast<double>(plan.steps) * plan.step_seconds +
                       static_cast<double>(plan.evaluations * plan.val_images) * plan.image_seconds;
  return plan;
}

std::int64_t largest_batch(const TrainingPlan& plan, std::size_t bytes) {
  const auto planned = [&](std::int64_t batch) {
    const auto replicas = make_replicas(plan.config, plan.devices, batch, plan.size, nullptr);
    return static_cast<double>(sum(memory_of(*replicas, false)));
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
