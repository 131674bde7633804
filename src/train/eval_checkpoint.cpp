#include <algorithm>
#include <optional>

#include "data/data_warnings.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "run/report_text.h"
#include "run/summary_json.h"
#include "run/trained_model.h"
#include "train/evaluator.h"
#include "train/inference/evaluate_augmented.h"
#include "train/replica_readings.h"
#include "train/training.h"

namespace lockstep {
namespace {

// Merges what the checkpoint's devices have, whatever the number of devices here.
void use_saved_statistics(DataParallel& replicas, const std::vector<ReplicaStatistics>& saved,
                          EvalStats stats) {
  if (saved.empty() || saved.front().empty()) return;
  const auto devices = static_cast<std::size_t>(replicas.size());
  write_running_statistics(
      replicas, std::vector<ReplicaStatistics>(devices, chosen_statistics(saved, stats)));
}

// The smallest training plan will do, in which no replica meets another.
std::unique_ptr<DataParallel> replicas_for(const Config& trained,
                                           const std::vector<Device>& devices, World& world) {
  Config config = without_demands(trained);
  config.batch.accumulate = 1;
  config.bn.sync_group = 0;
  if (config.bn.sync_top()) config.bn.sync_layers.clear();
  const int count = make_rank_layout(world, devices).ranks();
  return make_replicas(config, devices, count, small_image(config), nullptr, world);
}

// This process's share of so many ranks, on the devices that it has.
std::vector<Device> spread_ranks(int ranks, const std::vector<Device>& here, World& world) {
  if (ranks < world.size()) {
    throw ConfigError(concat("precise statistics are those of the ", ranks,
                             " devices of the training: start at most as many processes, not ",
                             world.size()));
  }
  const int before = ranks * world.process() / world.size();
  const auto own = static_cast<std::size_t>(ranks * (world.process() + 1) / world.size() - before);
  std::vector<Device> devices;
  for (std::size_t i = 0; i < own; ++i) {
    devices.push_back(here[i % here.size()]);
    devices.back().slot += static_cast<int>(i / here.size() * here.size());
  }
  return devices;
}

// Of the training's batches, cut as its devices had them (`saved`; empty: as those here would).
ReplicaStatistics compute_precise(const Config& trained, const CheckpointFiles& checkpoint,
                                  const TensorMap& tensors,
                                  const std::vector<ReplicaStatistics>& saved,
                                  const std::vector<Device>& here, World& world) {
  Config config = without_demands(trained);
  const bool known = !saved.empty();
  const int ranks = known ? static_cast<int>(saved.size()) : make_rank_layout(world, here).ranks();
  config.batch.global = config.global_batch(ranks);
  const TrainLoader loader(config.data, loader_options(config, *config.batch.global));
  const std::int64_t steps = config.max_iters(loader.batches_per_epoch());
  config = with_steps(config, steps);
  const bool spreads = known && !config.bn.shares_statistics();
  const auto replicas = make_replicas(config, spreads ? spread_ranks(ranks, here, world) : here,
                                      *config.batch.global, loader.size(), nullptr, world);
  load_from(checkpoint.path, [&] { return replicas->load_state_dict(tensors); });
  if (spreads && !saved.front().empty()) write_running_statistics(*replicas, saved);
  const bool frozen = iteration_of(checkpoint.weights) > config.bn.freeze_step(steps);
  if (frozen) replicas->freeze_statistics();
  return precise_statistics(*replicas, config);
}

void choose_split(const std::string& split, DataOptions& data) {
  if (split.empty()) return;
  if (find_layout(data).generated && split != "val") {
    throw ConfigError(concat("--split ", split, ": images of layout \"", data.layout,
                             "\" are generated, and val is the only split to evaluate"));
  }
  data.val = split;
  if (split != "val") data.val_share.reset();
}

void evaluate_with_augmentation(const EvalRequest& request, EvalReport& report) {
  TrainedModel model = read_trained_model({.target = request.target,
                                           .config = request.config,
                                           .overrides = request.overrides,
                                           .tables = request.tables,
                                           .computes = true});
  choose_split(request.split, model.config.data);
  report.checkpoint = model.checkpoint;
  report.warnings = model.warnings;
  report.iteration = model.iteration;
  report.classes = class_names(model.config.data);
  report.evaluation = evaluate_augmented(model, request.augmentation, parse_devices(report.devices),
                                         report.warnings);
}

void add_images(Evaluator& evaluator, EvalStats stats, const DataOptions& data,
                EvalReport& report) {
  constexpr std::size_t kWorst = 10;
  report.images = evaluator.evaluate_images(stats);
  std::vector<std::int64_t> worst = worst_first(report.images);
  worst.resize(std::min(worst.size(), kWorst));
  report.worst = evaluator.predict(stats, worst);
  report.colors = class_colors(data);
}

void evaluate_as_it_is(const EvalRequest& request, EvalReport& report) {
  World& world = request.world;
  CheckpointFiles checkpoint{.path = request.target};
  world.on_first([&] {
    config_of(request.config, checkpoint_of(request.target));  // what is no run has none
    checkpoint = read_checkpoint_of(request.target);
  });
  report.checkpoint = checkpoint.path;
  const SharedCheckpoint shared(world, checkpoint.path, [&] { return checkpoint; });
  if (!world.first()) checkpoint = read_checkpoint_files(shared.path());
  Config config = load_config_of(request.config, checkpoint.path, request.overrides,
                                 report.warnings, *request.tables);
  const Config trained = config;
  config.run.eval_disparity = false;  // a training measures it
  choose_split(request.split, config.data);
  const std::vector<Device> devices = parse_devices(report.devices);
  const EvalStats stats = config.bn.eval_stats;
  auto saved = saved_statistics(checkpoint, stats, report.warnings);

  if (!saved.empty() && !config.bn.eval_images) {
    config.bn.eval_images = config.images_together(static_cast<int>(saved.size()));
  }

  const TensorMap tensors =
      select_prefix(std::move(checkpoint.weights.tensors), config.model.weights_prefix);
  if (stats == EvalStats::kPrecise) {
    saved = {compute_precise(trained, checkpoint, tensors, saved, devices, world)};
  }
  const std::unique_ptr<DataParallel> replicas = replicas_for(config, devices, world);
  const ImportSummary summary =
      load_from(checkpoint.path, [&] { return replicas->load_state_dict(tensors); });
  warn_of_passed_over(checkpoint.path, tensors, summary, report.warnings);
  use_saved_statistics(*replicas, saved, stats);
  report.iteration = iteration_of(checkpoint.weights);
  report.classes = class_names(config.data);
  Evaluator evaluator(config, *replicas);
  warn_of_skipped(evaluator.dataset(), report.warnings);
  const Replica& own = replicas->own_replica();
  if (const auto text = window_warning(config, stats, own.network())) {
    report.warnings.push_back(*text);
  }
  const EvalStats used = are_running(stats) ? EvalStats::kDevice0 : stats;
  report.evaluation = evaluator.evaluate(used);
  report.evaluation.eval_stats = stats;
  if (request.per_image) add_images(evaluator, used, config.data, report);
}

}  // namespace

Json to_json(const TestTimeAugmentation& augmentation) {
  return {{"flip", augmentation.flip}, {"scales", augmentation.scales}};
}

std::vector<std::int64_t> worst_first(const std::vector<ImageScores>& images) {
  std::vector<std::int64_t> order;
  const auto score = [&](std::int64_t i) {
    return images[static_cast<std::size_t>(i)].metrics.m_iou;
  };
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(images.size()); ++i) {
    if (score(i)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return *score(a) < *score(b); });
  return order;
}

namespace {

Json to_json(const ImageScores& image, const std::vector<std::string>& classes) {
  Json json{{"image", image.name},
            {"mIoU", json_or_null(image.metrics.m_iou)},
            {"aAcc", json_or_null(image.metrics.a_acc)}};
  for (std::size_t c = 0; c < classes.size(); ++c) {
    json["IoU." + classes[c]] = json_or_null(image.metrics.iou[c]);
  }
  return json;
}

}  // namespace

std::string to_json(const EvalReport& report) {
  Json json{{"checkpoint", report.checkpoint.string()},
            {"iteration", report.iteration},
            {"devices", report.devices},
            {"classes", report.classes}};
  if (!report.split.empty()) json["split"] = report.split;
  if (report.augmentation.active()) json["tta"] = to_json(report.augmentation);
  json.update(to_json(report.evaluation, report.classes));
  for (const ImageScores& image : report.images) {
    json["per_image"].push_back(to_json(image, report.classes));
  }
  return json_text(json, 2);
}

namespace {

void check_per_image(const EvalRequest& request) {
  if (!request.per_image) return;
  if (request.augmentation.active()) {
    throw ConfigError("--per-image is of images as they are: leave out --flip and --scales");
  }
  if (request.world.get().size() > 1) {
    throw ConfigError("--per-image is computed by one process: start it without mpirun");
  }
}

}  // namespace

EvalReport evaluate_checkpoint(const EvalRequest& request) {
  EvalReport report;
  report.devices = devices_or_default(request.devices);
  report.split = request.split;
  report.augmentation = request.augmentation;
  check_per_image(request);
  if (request.augmentation.active()) {
    if (request.world.get().size() > 1) {
      throw ConfigError("--flip and --scales are computed by one process: start it without mpirun");
    }
    evaluate_with_augmentation(request, report);
  } else {
    evaluate_as_it_is(request, report);
  }
  if (const auto text = loss_warning(report.evaluation)) report.warnings.push_back(*text);
  return report;
}

}  // namespace lockstep
