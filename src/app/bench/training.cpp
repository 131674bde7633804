#include "app/bench/bench.h"
#include "core/rng.h"
#include "lockstep/core/check.h"
#include "train/diagnosis/sync_layers.h"

namespace lockstep {
namespace {

/// Size of training images as the configuration alone tells it: the data need not be there.
Size training_size(const DataOptions& data, const std::string& what) {
  if (data.augment && data.augment->crop) return *data.augment->crop;
  if (data.resize) return *data.resize;
  if (find_layout(data).generated) return data.size;
  throw ConfigError("bench " + what +
                    " needs the size of the images: set data.augment.crop or data.resize, e.g. -s "
                    "\"data.augment.crop=[176, 240]\"");
}

Batch random_batch(const Config& config, std::int64_t count, const Size& size) {
  Batch batch;
  batch.size = size;
  const auto classes = static_cast<std::uint32_t>(config.data.num_classes);
  const std::int64_t pixels = count * size.height * size.width;
  const bool of_images = find_layout(config.data).task == Task::kClassification;
  batch.class_pixels.resize(classes);
  Rng rng(config.run.seed, RngPurpose::kSynthetic, 0);
  batch.images.resize(static_cast<std::size_t>(config.data.channels * pixels));
  for (float& value : batch.images) value = rng.uniform(-2, 2);
  batch.labels.resize(static_cast<std::size_t>(of_images ? count : pixels));
  for (Label& label : batch.labels) {
    label = static_cast<Label>(rng.below(classes));
    ++batch.class_pixels[label];
  }
  for (std::int64_t n = 0; n < count; ++n) batch.samples.push_back(n);
  return batch;
}

}  // namespace

void BenchTraining::begin_step(std::int64_t index) {
  // A tiny rate: random labels teach nothing, and weights that diverge would end the benchmark.
  replicas->begin_step(batch, index, 1e-4F);
  replicas->stage_next(batch);
}

StepResult BenchTraining::step(std::int64_t index) {
  begin_step(index);
  return replicas->finish_step();
}

void BenchTraining::evaluate() {
  replicas->evaluate(1, [&](std::int64_t) { return batch; });
}

BenchTraining bench_training(const BenchArguments& arguments) {
  if (arguments.config.empty()) {
    throw ConfigError("bench " + arguments.what + " needs a configuration file");
  }
  BenchTraining training;
  training.config =
      load_config(arguments.config, arguments.common.overrides, nullptr, *arguments.common.tables);
  training.devices = bench_devices(arguments);
  training.size = training_size(training.config.data, arguments.what);
  training.config =
      with_sync_layers(training.config, arguments.common.devices, {}, arguments.common.world);
  const int ranks = make_rank_layout(arguments.common.world, training.devices).ranks();
  const std::int64_t batch = arguments.eval ? 1 : training.config.global_batch(ranks);
  training.replicas = make_replicas(training.config, training.devices, batch, training.size,
                                    nullptr, arguments.common.world);
  training.batch = random_batch(training.config, batch, training.size);
  return training;
}

}  // namespace lockstep
