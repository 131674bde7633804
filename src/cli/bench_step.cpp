// A whole training step on one batch that lies in memory: forward, backward, exchanges, update; no
// loader, no logs. Random images and labels: the time does not depend on what they show.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "lockstep/core/check.h"
#include "lockstep/core/rng.h"
#include "lockstep/report/table.h"
#include "lockstep/train/config.h"
#include "lockstep/train/training.h"

namespace lockstep {
namespace {

constexpr int kWarmupSteps = 3;
constexpr int kDefaultIters = 20;

struct StepBench {
  Config config;
  std::vector<Device> devices;
  std::int64_t batch = 0;
  Size size;
  std::int64_t parameters = 0;
  std::vector<double> step, compute, wait, exchange, other;  // milliseconds, [step]

  double images_per_second() const {
    return 1000 * static_cast<double>(batch) / percentiles(step).median;
  }
};

/// Size of training images as the configuration alone tells it: the data need not be there.
Size training_size(const DataOptions& data) {
  if (data.augment && data.augment->crop) return *data.augment->crop;
  if (data.resize) return *data.resize;
  if (data.layout == DataLayout::kStreets) return data.size;
  throw ConfigError(
      "bench step needs the size of the images: set data.augment.crop or data.resize, e.g. -s "
      "\"data.augment.crop=[176, 240]\"");
}

Batch random_batch(const StepBench& bench) {
  Batch batch;
  batch.size = bench.size;
  const auto classes = static_cast<std::uint32_t>(bench.config.data.num_classes);
  const std::int64_t pixels = bench.batch * bench.size.height * bench.size.width;
  batch.class_pixels.resize(classes);
  Rng rng(bench.config.run.seed, RngPurpose::kSynthetic, 0);
  batch.images.resize(static_cast<std::size_t>(3 * pixels));
  for (float& value : batch.images) value = rng.uniform(-2, 2);
  batch.labels.resize(static_cast<std::size_t>(pixels));
  for (std::uint8_t& label : batch.labels) {
    label = static_cast<std::uint8_t>(rng.below(classes));
    ++batch.class_pixels[label];
  }
  for (std::int64_t n = 0; n < bench.batch; ++n) batch.samples.push_back(n);
  return batch;
}

void time_step(StepBench& bench, DataParallel& training, const Batch& batch, std::int64_t step) {
  StepResult result;
  // A tiny rate: random labels teach nothing, and weights that diverge would end the benchmark.
  // In parts, as the trainer does it: GPUs get the next batch while they work on this one.
  const double seconds = seconds_of([&] {
    training.begin_step(batch, step, 1e-4F);
    training.stage_next(batch);
    result = training.finish_step();
  });
  if (step < kWarmupSteps) return;
  const StepTimes& times = result.times;
  bench.step.push_back(1000 * seconds);
  bench.compute.push_back(1000 * times.compute);
  bench.wait.push_back(1000 * times.batch_norm_wait);
  bench.exchange.push_back(1000 * times.gradient_exchange);
  bench.other.push_back(
      1000 * (seconds - times.compute - times.batch_norm_wait - times.gradient_exchange));
}

void print_json(const StepBench& bench, const BenchArguments& arguments) {
  const nlohmann::ordered_json phases = {
      {"compute", percentiles_json(percentiles(bench.compute))},
      {"batch_norm_wait", percentiles_json(percentiles(bench.wait))},
      {"gradient_exchange", percentiles_json(percentiles(bench.exchange))},
      {"other", percentiles_json(percentiles(bench.other))}};
  const nlohmann::ordered_json root = {{"bench", "step"},
                                       {"config", arguments.config.string()},
                                       {"bn_mode", to_string(bench.config.bn.mode)},
                                       {"devices", bench.devices.size()},
                                       {"device", to_string(bench.devices.front())},
                                       {"global_batch", bench.batch},
                                       {"size", {bench.size.height, bench.size.width}},
                                       {"parameters", bench.parameters},
                                       {"ms_per_step", percentiles_json(percentiles(bench.step))},
                                       {"images_per_second", bench.images_per_second()},
                                       {"phases_ms", phases},
                                       {"peak_memory_bytes", peak_memory_bytes()}};
  fmt::print("{}\n", root.dump(2));
}

void print_table(const StepBench& bench) {
  fmt::print(
      "Training step, {} BatchNorm, {} device(s) from {}, batch {} of {}x{}, {} parameters\n\n",
      to_string(bench.config.bn.mode), bench.devices.size(), to_string(bench.devices.front()),
      bench.batch, bench.size.height, bench.size.width, bench.parameters);
  Table table{{"", "ms, median (p10 to p90)"}, {}};
  const auto add = [&](const char* name, const std::vector<double>& values) {
    table.rows.push_back({name, format_percentiles(percentiles(values), 1)});
  };
  add("step", bench.step);
  add("  compute", bench.compute);
  add("  waiting in BatchNorm", bench.wait);
  add("  gradient exchange, update", bench.exchange);
  add("  other", bench.other);
  fmt::print("{}\n{:.1f} images/s, peak memory {:.0f} MB\n", to_markdown(table),
             bench.images_per_second(), static_cast<double>(peak_memory_bytes()) / 1e6);
}

}  // namespace

int bench_step(const BenchArguments& arguments) {
  if (arguments.config.empty()) throw ConfigError("bench step needs a configuration file");
  StepBench bench;
  bench.config = load_config(arguments.config, arguments.common.overrides);
  bench.devices = bench_devices(arguments);
  bench.batch = bench.config.global_batch(static_cast<int>(bench.devices.size()));
  bench.size = training_size(bench.config.data);
  const auto training =
      make_replicas(bench.config, bench.devices, bench.batch, bench.size, nullptr);
  bench.parameters = parameter_count(*training);
  const Batch batch = random_batch(bench);
  const int iters = arguments.iters > 0 ? arguments.iters : kDefaultIters;
  for (int step = 0; step < kWarmupSteps + iters; ++step) time_step(bench, *training, batch, step);
  arguments.common.json ? print_json(bench, arguments) : print_table(bench);
  return kExitDone;
}

}  // namespace lockstep
