#include "train/before_training.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "config/judged_values.h"
#include "data/batch_plan.h"
#include "data/data_warnings.h"
#include "data/normalize.h"
#include "data/repeated_samples.h"
#include "data/sample_store.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "step/check_declared.h"
#include "train/eval_batches.h"
#include "train/settled_data.h"
#include "train/training.h"

namespace lockstep {
namespace {

SplitReport examine(const Dataset& dataset, const DataOptions& options, Split split,
                    std::int64_t count) {
  return examine_split(dataset, options, split, sample_evenly(dataset, count), options.workers);
}

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// The sizes that global batches will have: an epoch's last may be smaller.
std::vector<std::int64_t> batch_sizes(const Config& config, int ranks, std::int64_t images) {
  const std::int64_t batch = config.global_batch(ranks);
  if (config.batch.drop_last || images % batch == 0) return {batch};
  if (images < batch) return {images};
  return {batch, images % batch};
}

// What a training asks of its loader and itself before the first step.
void check_loaded(const Config& config, const std::vector<Device>& devices, const Dataset& train,
                  std::vector<std::string>& warnings) {
  World& world = World::alone();
  const int ranks = make_rank_layout(world, devices).ranks();
  check_colors(config.data);
  const BatchPlan plan = plan_batches(config.data, train, config.global_batch(ranks),
                                      config.batch.drop_last, config.size_divisor());
  warn_of_padding(plan.unpadded_size, plan.size, warnings);
  append(warnings, check_training(config, devices, world,
                                  {plan.size, plan.samples_per_epoch, plan.batches_per_epoch}));
  const bool evaluates_batches =
      config.bn.eval_stats == EvalStats::kBatch || measures_disparity(config, false);
  if (evaluates_batches || config.bn.lacks_running_statistics())
    check_evaluated_sizes(config, ranks, ValLoader(config.data, config.run.seed));
}

/// As a training finds it settled; what it measures refuses nothing.
void settle_type_found(const SplitReport& train, PixelOptions& data) {
  if (data.pixels || normalizes_by_image(data) || train.types.empty()) return;
  const PixelType type = train.types.begin()->first;
  if (!settle_type(data, type)) return;
  data.pixels = type;
  data.mean = {0};
  data.std = {1};
}

void find_refusal(Config config, const std::vector<Device>& devices, const Dataset& train,
                  DataReport& report) {
  const bool left_out = config.data.skip_broken && !report.train.broken.empty();
  try {
    settle_type_found(report.train, config.data);
    if (left_out) {
      check_loaded(config, devices, *make_dataset(config.data, Split::kTrain, config.run.seed),
                   report.warnings);
    } else {
      check_loaded(config, devices, train, report.warnings);
    }
  } catch (const std::exception&) {
    report.refusal = std::current_exception();
  }
}

/// One mean and one deviation cannot be of two types.
void refuse_mixed_types(DataReport& report) {
  std::map<PixelType, std::string> examples;
  for (const SplitReport* split : {&report.train, &report.val}) {
    for (const auto& [type, found] : split->types) examples.emplace(type, found.example);
  }
  if (report.refusal || examples.size() < 2 || normalizes_by_image(report.options)) return;
  const auto& [first, of_first] = *examples.begin();
  const auto& [other, of_other] = *std::next(examples.begin());
  report.refusal =
      std::make_exception_ptr(DataError(several_types(of_first, first, of_other, other)));
}

/// What a training would measure at its start.
void refuse_without_pixels(const Dataset& train, DataReport& report) {
  const SplitReport& split = report.train;
  const bool measured = !normalizes_by_image(report.options) && !split.types.empty() &&
                        !normalizes_as_given(report.options, split.types.begin()->first);
  if (report.refusal || !measured || split.examined < split.images) return;
  try {
    check_pixels(split.pixels, train.describe(0));
  } catch (const DataError&) {
    report.refusal = std::current_exception();
  }
}

/// Without running statistics a layer normalises each image, or window, by its own values.
void check_evaluated_alone(const Config& config, const ValLoader& loader) {
  Config alone = config;
  alone.bn.mode = BatchNormMode::kLocal;
  alone.batch.accumulate = 1;
  const int divisor = config.size_divisor();
  const Size size = config.eval.window ? *config.eval.window
                                       : loader.load(loader.largest(divisor), 1, divisor).size;
  try {
    check_declared(replica_options(alone, {Device{}}, 1, size), 1, std::array<std::int64_t, 1>{1});
  } catch (const ReplicaError& error) {
    throw ConfigError(concat("bn.track_running_stats = false evaluates each image by its own ",
                             "statistics, which one layer lacks even of the largest; keep running ",
                             "statistics (", error.what(), ")"));
  }
}

void warn_of_duplicates(DataReport& report) {
  if (report.duplicates.empty()) return;
  report.warnings.push_back(
      concat("data: ", report.duplicates.size(),
             " validation images are training images, too: ", report.duplicates.front(),
             report.duplicates.size() > 1 ? " and others" : "", "; the validation flatters"));
}

}  // namespace

std::vector<std::string> check_training(const Config& config, const std::vector<Device>& devices,
                                        World& world, const TrainingShape& shape) {
  throw_if_refused(judge_values(config));
  const int ranks = make_rank_layout(world, devices).ranks();
  const auto judged = judge_run(config, config.max_iters(shape.steps_per_epoch), ranks);
  throw_if_refused(judged);
  std::vector<std::string> warnings;
  for (const JudgedValue& value : judged) warnings.push_back(to_string(value));
  const std::int64_t batch = config.global_batch(ranks);
  append(warnings, by_keys([&] {
           return check_declared(replica_options(config, devices, batch, shape.size, world), ranks,
                                 batch_sizes(config, ranks, shape.images));
         }));
  return warnings;
}

std::vector<std::string> look_at_data(const Config& config, const Dataset& train,
                                      const Dataset& val) {
  constexpr std::int64_t kLookedAt = 64;
  std::vector<std::string> warnings = repetition_warnings(train, val, config.data);
  if (find_layout(config.data).generated) return warnings;
  for (const auto& [split, dataset] : {std::pair{Split::kTrain, &train}, {Split::kVal, &val}}) {
    append(warnings, data_warnings(examine(*dataset, config.data, split, kLookedAt), config.data));
  }
  return warnings;
}

void check_evaluated_sizes(const Config& config, int ranks, const ValLoader& loader) {
  if (config.bn.lacks_running_statistics()) check_evaluated_alone(config, loader);
  const bool chosen = config.bn.eval_stats == EvalStats::kBatch;
  const bool asked = chosen || measures_disparity(config, false);
  const std::int64_t together = images_together(config, ranks, loader);
  if (!asked || together == 1 || loader.one_size()) return;
  throw ConfigError(concat(
      "batch statistics of ", together, " images (",
      chosen ? "bn.eval_stats = \"batch\"" : "run.eval_disparity",
      ") need validation images of one size, and these differ; set data.resize or data.val_crop, "
      "or bn.eval_images = 1"));
}

DataReport check_data(const Config& config, const std::vector<Device>& devices,
                      std::int64_t count) {
  DataReport report;
  report.options = config.data;
  report.options.skip_broken = false;  // what is broken is to be told
  report.classes = class_names(config.data);
  begin_computing(config, devices);
  const auto train = make_dataset(report.options, Split::kTrain, config.run.seed);
  const auto val = make_dataset(report.options, Split::kVal, config.run.seed);
  report.train = examine(*train, report.options, Split::kTrain, count);
  report.val = examine(*val, report.options, Split::kVal, count);
  report.weights = median_frequency_weights(report.train);
  for (const auto& [a, b] : find_duplicates(*train, report.train, *val, report.val))
    report.duplicates.push_back(concat(train->describe(a), " = ", val->describe(b)));
  for (const Dataset* dataset : {train.get(), val.get()})
    warn_of_skipped(*dataset, report.warnings);
  append(report.warnings, repetition_warnings(*train, *val, report.options));
  for (const SplitReport* split : {&report.train, &report.val})
    append(report.warnings, data_warnings(*split, report.options));
  warn_of_duplicates(report);
  Config weighted = config;
  fill_balanced({report.weights.begin(), report.weights.end()}, weighted);
  // Which they are takes a diagnosis of images, which may be broken.
  if (weighted.bn.sync_top()) weighted.bn.sync_layers.clear();
  find_refusal(weighted, devices, *train, report);
  refuse_mixed_types(report);
  refuse_without_pixels(*train, report);
  return report;
}

}  // namespace lockstep
