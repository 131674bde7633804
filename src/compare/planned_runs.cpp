#include "compare/planned_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "compare/planned_cells.h"
#include "config/config.h"
#include "core/json.h"
#include "data/fingerprint.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/core/device.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/report_text.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "train/diagnosis/diagnosis.h"
#include "train/diagnosis/sync_layers.h"
#include "train/plan.h"
#include "train/settled_data.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// One device of the same kind, for mode ghost.
std::string single_device(const Device& device) {
  return device.kind == DeviceKind::kCpu ? "cpu:1" : "cuda:" + std::to_string(device.ordinal);
}

constexpr const char* kAuto = "auto";

/// What a diagnosis of the configuration says of its images per device, by process 0 for all.
struct NamedModes {
  std::vector<std::string> modes;
  std::string why;
};

NamedModes named_modes(const CompareRequest& request, const Config& config, int ranks,
                       const std::string& devices) {
  Config local = config;
  local.bn.mode = BatchNormMode::kLocal;
  const std::int64_t together = local.images_together(ranks);
  const std::string said = request.world.get().from_first([&] {
    const Diagnosis diagnosis =
        diagnose({.config = local, .device = devices, .images_per_device = {together}});
    if (!diagnosis.shares_statistics()) {
      throw ConfigError(
          "--modes auto: no layer of this network normalises by several images, so "
          "there is nothing to compare");
    }
    const ImagesDiagnosis& images = diagnosis.by_images.front();
    Json modes{kLocalMode, kSyncMode};
    const bool by_image =
        images.verdict == SyncVerdict::kByImage || images.verdict == SyncVerdict::kCannotTell;
    if (by_image) modes.push_back(to_string(BatchNormMode::kInstance));
    return Json{
        {"modes", modes},
        {"why", fmt::format("auto: with {} per device: {} ({})", count_of(together, "image"),
                            to_string(images.verdict), images.reason)}}
        .dump();
  });
  const Json read = Json::parse(said);
  return {read.at("modes").get<std::vector<std::string>>(), read.at("why").get<std::string>()};
}

/// A configuration whose bn.sync_layers is "top:K" means sync:top:K by sync.
std::vector<std::string> modes_of(const CompareRequest& request, const Config& config) {
  std::vector<std::string> modes = request.modes;
  if (modes.empty()) modes = {kLocalMode, kSyncMode};
  if (const auto top = config.bn.sync_top()) {
    std::ranges::replace(modes, std::string(kSyncMode), sync_top_mode(*top));
  }
  return check_modes(std::move(modes));
}

/// By the configuration as it is, and so for all seeds: process 0 for all. Empty where no mode
/// asks.
std::vector<std::string> ranking_for(const CompareRequest& request, const ComparisonPlan& plan,
                                     const Config& config, const std::string& devices) {
  if (std::ranges::none_of(plan.modes,
                           [](const std::string& mode) { return sync_top_of(mode) > 0; })) {
    return {};
  }
  const std::string names =
      request.world.get().from_first([&] { return Json(rank_layers(config, devices)).dump(); });
  return Json::parse(names).get<std::vector<std::string>>();
}

/// The overrides that make a run of the configuration.
std::vector<std::string> run_overrides(const CompareRequest& request, const PlannedCell& cell,
                                       int seed) {
  std::vector<std::string> overrides = request.overrides;
  overrides.insert(overrides.end(), cell.overrides.begin(), cell.overrides.end());
  overrides.push_back("run.seed=" + std::to_string(seed));
  // Whether other running statistics would close the gap is part of the answer.
  if (!overrides_key(overrides, "run.eval_all_stats")) {
    overrides.push_back("run.eval_all_stats=true");
  }
  return overrides;
}

fs::path folder_of(const CompareRequest& request, const Config& config) {
  return request.output.empty() ? config.run.work_dir / (config.run.name + "-compare")
                                : request.output;
}

/// The one that a comparison has begun under the mode's former name goes on.
fs::path run_folder_of(const fs::path& comparison, const Cell& cell, int seed) {
  const fs::path former = comparison / fmt::format("virtual-s{}", seed);
  if (cell.mode == kGhostMode && fs::exists(former)) return former;
  return comparison / fmt::format("{}-s{}", cell.folder(), seed);
}

/// Measured, or as a run that the folder holds has it; runs that are done can be compared without
/// their data.
std::string settle_comparison(const fs::path& folder, Config& config) {
  std::error_code missing;
  fs::path begun;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    if (RunFolder{entry.path()}.holds_run() && (begun.empty() || entry.path() < begun))
      begun = entry.path();
  }
  try {
    return settle_data(config, begun);
  } catch (const DataError&) {
    if (begun.empty()) throw;
    return "";
  }
}

PlannedRun make_run(const CompareRequest& request, const ComparisonPlan& plan, const Config& common,
                    const std::string& devices, const PlannedCell& cell, int seed) {
  TrainRequest run;
  run.config = load_config(request.config, run_overrides(request, cell, seed), &run.warnings,
                           *request.tables);
  take_settled(common, run.config);
  run.devices = cell.on_one_device ? single_device(parse_devices(devices).front()) : devices;
  run.output = run_folder_of(plan.folder, cell.cell, seed);
  run.console = request.console;
  run.program = request.program;
  run.cell = {cell.cell.images, sync_top_of(cell.cell.mode)};
  const std::string placement = cell.on_one_device ? run.devices : plan.layout.placement(devices);
  return {cell.cell, std::move(run), placement};
}

/// The one that its folder holds.
Config config_of(const PlannedRun& run) {
  return load_config(run.request.output / "config.toml", {}, nullptr, *run.request.config.tables);
}

/// What runs that are there are held against.
class PresentData {
 public:
  explicit PresentData(const CompareRequest& request) : request_(request) {}

  /// Throws ConfigError where the run in the folder was trained with other data, unless that is
  /// asked for.
  void check(const PlannedRun& run) {
    const fs::path& folder = run.request.output;
    const std::string theirs = data_hash_of(folder);
    const std::string ours = hash_of(run.request.config);
    if (ours == theirs || ours.empty()) return;
    if (theirs.empty()) {
      if (!std::exchange(told_, true))
        request_.say(
            fmt::format("  note: {} does not say what data it was trained with, so that "
                        "whether they have changed is not known",
                        folder.string()));
      return;
    }
    const std::string changes = fingerprint_->changes_since(RunFolder{folder}.data());
    if (!request_.other_data) {
      throw ConfigError(fmt::format(
          "{} was trained with other data: {}; choose another folder with -o, remove the run, or "
          "compare across the change with --other-data",
          folder.string(), changes));
    }
    if (!std::exchange(told_, true))
      request_.say(
          fmt::format("  note: {} was trained with other data: {}", folder.string(), changes));
  }

 private:
  /// All runs of a comparison have one data set. Where there is none any more, runs that are done
  /// can still be compared.
  std::string hash_of(const Config& config) {
    if (std::exchange(looked_, true)) return fingerprint_ ? fingerprint_->hash() : "";
    try {
      train_ = make_dataset(config.data, Split::kTrain, config.run.seed);
      val_ = make_dataset(config.data, Split::kVal, config.run.seed);
    } catch (const DataError&) {
      return "";
    }
    return fingerprint_.emplace(*train_, *val_, config.data).hash();
  }

  const CompareRequest& request_;
  std::unique_ptr<Dataset> train_, val_;
  std::optional<Fingerprint> fingerprint_;
  bool looked_ = false, told_ = false;
};

/// Whether the hash is that of the run's configuration, wherever its data lie: what they hold is
/// looked at by itself.
bool is_same_config(const PlannedRun& run, const std::string& hash) {
  if (hash == config_hash(run.request.config)) return true;
  if (data_hash_of(run.request.output).empty()) return false;
  Config there = config_of(run);
  there.data.root = run.request.config.data.root;
  return config_hash(there) == config_hash(run.request.config);
}

/// Throws ConfigError unless the run in the folder is this very one.
void check_same(const PlannedRun& run, const std::string& hash, const std::string& placement) {
  const bool same = is_same_config(run, hash);
  if (same && (placement.empty() || placement == run.placement)) return;
  std::string difference = same ? "devices " + placement + ", now " + run.placement
                                : config_difference(config_of(run), run.request.config);
  if (difference.empty()) difference = "one of another version of the program";
  throw ConfigError(fmt::format(
      "{} holds a run with another configuration: {}; give the {} that are there with {}, "
      "choose another folder with -o, or remove it",
      run.request.output.string(), difference, same ? "devices" : "values", same ? "-d" : "-s"));
}

/// The finished run in its folder, if there is one. An unfinished one is prepared to be resumed.
std::optional<TrainSummary> finished_run(PlannedRun& run, PresentData& data) {
  const fs::path& folder = run.request.output;
  if (std::optional<TrainSummary> summary = read_summary(folder)) {
    check_same(run, summary->config_hash, summary->placement);
    data.check(run);
    return summary;
  }
  if (fs::exists(folder / "config.toml")) {
    check_same(run, config_hash(config_of(run)), "");
    data.check(run);
    run.request.resume = "auto";
  }
  return std::nullopt;
}

std::string describe_run(const TrainSummary& summary) {
  const std::optional<double> reached = score(summary.evaluation);
  return fmt::format("{} {}, train loss {:.3f}{}", score_name(summary.evaluation.task),
                     reached ? fmt::format("{:.2f}", *reached) : "undefined", summary.train_loss,
                     summary.times.known()
                         ? fmt::format(", {:.0f} ms per step", 1000 * summary.times.median_step)
                         : "");
}

/// What the runs from `next` on will take, by the mean of those that this process has trained.
/// Some may be done before; they are looked at when their turn comes.
std::string describe_rest(const std::vector<std::chrono::duration<double>>& trained,
                          const ComparisonPlan& plan, std::size_t next) {
  if (next == plan.runs.size()) return "";
  const auto sum = std::accumulate(trained.begin(), trained.end(), std::chrono::duration<double>{});
  const double mean = sum.count() / static_cast<double>(trained.size());
  const auto missing =
      std::count_if(plan.runs.begin() + static_cast<std::ptrdiff_t>(next), plan.runs.end(),
                    [](const PlannedRun& run) { return !read_summary(run.request.output); });
  if (missing == 0) return "";
  return fmt::format(", in {}; about {} to the end", format_duration(trained.back().count()),
                     format_duration(mean * static_cast<double>(missing)));
}

constexpr int kTimedSteps = 3;

/// Of a whole run: steps and the evaluations at its end.
double seconds_of(const TrainSummary& run) {
  const auto evaluations = static_cast<double>(1 + run.other_stats.size());
  return static_cast<double>(run.iterations) * run.times.step +
         evaluations * run.evaluation.seconds;
}

/// The same by a few steps; none where they fail, as the training then will.
std::optional<double> measured_seconds(const PlannedRun& run) {
  try {
    return plan_training(run.request.config, parse_devices(run.request.devices), kTimedSteps)
        .total_seconds;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Whether the error may be this mode's alone, so that the others are worth training.
bool is_of_mode(const std::exception& error) {
  if (threads_left_behind() || dynamic_cast<const RunInUseError*>(&error) != nullptr) return false;
  return dynamic_cast<const ConfigError*>(&error) != nullptr ||
         dynamic_cast<const NonFiniteError*>(&error) != nullptr ||
         dynamic_cast<const ReplicaError*>(&error) != nullptr;
}

/// Trains the run; false: it cannot be trained, which `runs` then holds. Several processes end
/// with the first failure.
bool train_run(const PlannedRun& run, bool alone, ComparedRuns& runs) {
  try {
    runs.finished.push_back(train(run.request));
    return true;
  } catch (const Error& error) {
    if (!alone || !is_of_mode(error)) throw;
    if (!runs.first_failure) runs.first_failure = std::current_exception();
    runs.failed.push_back({run.cell.label(), run.request.config.run.seed, error.what()});
    return false;
  }
}

/// Trains the runs of a plan one after the other, and tells of each.
class Training {
 public:
  Training(const CompareRequest& request, ComparisonPlan& plan)
      : request_(request), plan_(plan), data_(request) {}

  std::optional<ComparedRuns> run() {
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) {
      if (!finish(i)) return std::nullopt;
    }
    return std::move(runs_);
  }

 private:
  World& world() const { return request_.world; }
  void tell(const std::string& line) const {
    world().on_first([&] { request_.say(line); });
  }

  /// False: interrupted.
  bool finish(std::size_t index) {
    PlannedRun& run = plan_.runs[index];
    const std::string name = fmt::format("[{}/{}] {} seed {}", index + 1, plan_.runs.size(),
                                         run.cell.label(), run.request.config.run.seed);
    std::optional<TrainSummary> have;
    world().on_first([&] { have = finished_run(run, data_); });
    const std::string work = world().broadcast(have                 ? "done"
                                               : run.request.resume ? "resuming"
                                                                    : "training");
    if (work == "done") {
      if (have) tell(name + ": done before, " + describe_run(*have));
      if (have) runs_.finished.push_back(std::move(*have));
      return true;
    }
    if (work == "resuming") run.request.resume = "auto";
    tell(fmt::format("{}: {} (log: {})", name, work, (run.request.output / "run.log").string()));
    return train(run, name, index);
  }

  bool train(PlannedRun& run, const std::string& name, std::size_t index) {
    // Mode ghost takes one device, which process 0 has.
    const bool together = run.cell.mode != kGhostMode;
    if (together) run.request.world = world();
    run.request.stop = request_.stop;
    const auto begin = std::chrono::steady_clock::now();
    if ((world().first() || together) && !train_run(run, world().size() == 1, runs_)) {
      tell(fmt::format("{}: cannot train: {}", name, runs_.failed.back().error));
      return true;
    }
    const bool stopped =
        world().first() && runs_.finished.back().status == TrainStatus::kInterrupted;
    if (world().broadcast(stopped ? "interrupted" : "") == "interrupted") return false;
    if (!world().first()) return true;
    trained_.push_back(std::chrono::steady_clock::now() - begin);
    tell(name + ": " + describe_run(runs_.finished.back()) +
         describe_rest(trained_, plan_, index + 1));
    return true;
  }

  const CompareRequest& request_;
  ComparisonPlan& plan_;
  PresentData data_;
  ComparedRuns runs_;
  std::vector<std::chrono::duration<double>> trained_;
};

}  // namespace

ComparisonPlan plan_comparison(const CompareRequest& request) {
  for (const auto& [key, options] :
       {std::pair{"bn.mode", "--modes names"}, {"run.seed", "--first-seed and --seeds name"}}) {
    if (!overrides_key(request.overrides, key)) continue;
    throw ConfigError(
        fmt::format("-s {}: compare trains what {}; leave the setting out", key, options));
  }
  Config config = load_config(request.config, request.overrides, nullptr, *request.tables);
  check_can_be_written(config);
  settle_by_first(config, request.world,
                  [&] { return settle_comparison(folder_of(request, config), config); });
  const std::string devices = devices_or_default(request.devices);
  ComparisonPlan plan;
  plan.layout = make_rank_layout(request.world, parse_devices(devices));
  CompareRequest named = request;
  if (request.modes == std::vector<std::string>{kAuto}) {
    NamedModes found = named_modes(request, config, plan.layout.ranks(), devices);
    named.modes = std::move(found.modes);
    plan.why = std::move(found.why);
  }
  plan.modes = modes_of(named, config);
  plan.folder = folder_of(request, config);
  if (RunFolder{plan.folder}.holds_run()) {
    throw ConfigError(
        fmt::format("{} holds a run, and a comparison wants a folder of its own; "
                    "name another with -o",
                    plan.folder.string()));
  }
  if (!request.images.empty() && request.world.get().size() > 1) {
    throw ConfigError(
        "--images-per-device is for one process: slices of its devices stand for all others");
  }
  const std::vector<PlannedCell> cells =
      plan_cells({plan.modes, request.images, request.overrides, plan.layout.ranks(),
                  ranking_for(request, plan, config, devices)},
                 config);
  for (const PlannedCell& cell : cells) plan.cells.push_back(cell.cell);
  for (int i = 0; i < request.seeds; ++i) {
    for (const PlannedCell& cell : cells)
      plan.runs.push_back(make_run(request, plan, config, devices, cell, request.first_seed + i));
  }
  return plan;
}

std::vector<std::string> describe(const ComparisonPlan& plan, int seeds) {
  std::vector<std::string> lines{
      fmt::format("compare: {} in {}", count_of(plan.runs.size(), "run"), plan.folder.string())};
  if (!plan.why.empty()) lines.push_back("  " + plan.why);
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    const PlannedRun& run = plan.runs[i];
    const int slices = run.request.config.bn.slices();
    lines.push_back(fmt::format("  {}: {}", run.cell.label(), run.placement));
    if (run.cell.mode == kGhostMode || slices > 1)
      lines.back() += fmt::format(", {}", count_of(slices, "slice"));
    if (sync_top_of(run.cell.mode) > 0)
      lines.back() +=
          fmt::format(", synchronized: {}", fmt::join(run.request.config.bn.sync_layers, ", "));
  }
  const bool curve =
      std::ranges::any_of(plan.cells, [](const Cell& cell) { return cell.images > 0; });
  const auto of_batches = std::ranges::count_if(plan.modes, [](const std::string& mode) {
    return mode == kLocalMode || mode == kSyncMode || sync_top_of(mode) > 0;
  });
  if (plan.layout.ranks() == 1 && of_batches > 1 && !curve) {
    lines.emplace_back(
        "  note: on one device local and sync are the same; -d cpu:4 makes four of it");
  }
  lines.push_back("  " + describe_power(seeds));
  return lines;
}

Estimate estimate_time(const ComparisonPlan& plan) {
  Estimate estimate;
  for (std::size_t cell = 0; cell < plan.cells.size(); ++cell) {
    std::optional<TrainSummary> finished;
    std::size_t missing = 0;
    for (std::size_t i = cell; i < plan.runs.size(); i += plan.cells.size()) {
      std::optional<TrainSummary> summary = read_summary(plan.runs[i].request.output);
      missing += summary ? 0 : 1;
      if (summary && summary->times.known()) finished = std::move(summary);
    }
    if (missing == 0) continue;
    estimate.runs += missing;
    const std::optional<double> seconds =
        finished ? seconds_of(*finished) : measured_seconds(plan.runs[cell]);
    if (!finished && seconds) ++estimate.measured;
    if (!seconds) estimate.unknown.push_back(plan.cells[cell].label());
    estimate.seconds += static_cast<double>(missing) * seconds.value_or(0);
  }
  return estimate;
}

std::string describe(const Estimate& estimate) {
  if (estimate.runs == 0) return "all runs are done";
  std::string text = fmt::format("about {} for {} to train, by ", format_duration(estimate.seconds),
                                 count_of(static_cast<std::int64_t>(estimate.runs), "run"));
  text += estimate.measured == 0
              ? "the times of finished ones"
              : fmt::format("{} steps and an evaluation of {}, timed now", kTimedSteps,
                            count_of(static_cast<std::int64_t>(estimate.measured), "kind"));
  if (estimate.unknown.empty()) return text;
  return fmt::format("{}; without {}, which could not take a step", text,
                     fmt::join(estimate.unknown, ", "));
}

std::optional<ComparedRuns> train_runs(const CompareRequest& request, ComparisonPlan& plan) {
  return Training(request, plan).run();
}

}  // namespace lockstep
