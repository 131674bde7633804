#include "compare/planned_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "config/config.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/core/device.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/report_text.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_ghost(const std::string& mode) { return mode == to_string(BatchNormMode::kGhost); }

/// One device of the same kind, for mode ghost.
std::string single_device(const Device& device) {
  return device.kind == DeviceKind::kCpu ? "cpu:1" : "cuda:" + std::to_string(device.ordinal);
}

bool overrides_key(const std::vector<std::string>& overrides, const std::string& key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& text) { return text.starts_with(key + "="); });
}

std::vector<std::string> modes_of(const CompareRequest& request) {
  std::vector<std::string> modes = request.modes;
  if (modes.empty()) {
    modes = {to_string(BatchNormMode::kLocal), to_string(BatchNormMode::kSync)};
  }
  for (auto mode = modes.begin(); mode != modes.end(); ++mode) {
    *mode = current_mode_name(*mode);
    if (std::find(modes.begin(), mode, *mode) != mode) {
      throw ConfigError("--modes names " + *mode + " twice");
    }
  }
  return modes;
}

/// The overrides that make a run of the configuration. A slice of mode `ghost` takes the place of
/// a device: one device, as many slices as there are devices, the same global batch.
std::vector<std::string> run_overrides(const CompareRequest& request, const std::string& mode,
                                       int seed, int devices, std::int64_t global_batch) {
  std::vector<std::string> overrides = request.overrides;
  overrides.push_back("bn.mode=" + mode);
  overrides.push_back("run.seed=" + std::to_string(seed));
  // Whether other running statistics would close the gap is part of the answer.
  if (!overrides_key(overrides, "run.eval_all_stats")) {
    overrides.push_back("run.eval_all_stats=true");
  }
  if (is_ghost(mode)) {
    overrides.push_back("batch.global=" + std::to_string(global_batch));
    if (devices > 1 && !overrides_key(overrides, "bn.virtual_devices")) {
      overrides.push_back("bn.virtual_devices=" + std::to_string(devices));
    }
  }
  return overrides;
}

/// The one that a comparison has begun under the mode's former name goes on.
fs::path run_folder_of(const fs::path& comparison, const std::string& mode, int seed) {
  const fs::path former = comparison / fmt::format("virtual-s{}", seed);
  if (is_ghost(mode) && fs::exists(former)) return former;
  return comparison / fmt::format("{}-s{}", mode, seed);
}

TrainRequest make_request(const CompareRequest& request, const ComparisonPlan& plan,
                          const std::string& devices, const std::string& mode, int seed,
                          std::int64_t global_batch) {
  TrainRequest run;
  run.config = load_config(request.config,
                           run_overrides(request, mode, seed, plan.layout.ranks(), global_batch),
                           &run.warnings, *request.tables);
  run.devices = is_ghost(mode) ? single_device(parse_devices(devices).front()) : devices;
  run.output = run_folder_of(plan.folder, mode, seed);
  run.console = request.console;
  run.program = request.program;
  return run;
}

/// Throws ConfigError unless the run in the folder is this very one.
void check_same(const PlannedRun& run, const std::string& hash, const std::string& placement) {
  const std::string expected = config_hash(run.request.config);
  if (hash == expected && (placement.empty() || placement == run.placement)) return;
  throw ConfigError(fmt::format(
      "{} holds a run with another configuration{}; choose another folder with -o, or remove it",
      run.request.output.string(),
      hash == expected ? " (devices " + placement + ", now " + run.placement + ")" : ""));
}

/// The finished run in its folder, if there is one. An unfinished one is prepared to be resumed.
std::optional<TrainSummary> finished_run(PlannedRun& run) {
  const fs::path& folder = run.request.output;
  if (std::optional<TrainSummary> summary = read_summary(folder)) {
    check_same(run, summary->config_hash, summary->placement);
    return summary;
  }
  if (fs::exists(folder / "config.toml")) {
    const Tables& tables = *run.request.config.tables;
    check_same(run, config_hash(load_config(folder / "config.toml", {}, nullptr, tables)), "");
    run.request.resume = "auto";
  }
  return std::nullopt;
}

std::string describe_run(const TrainSummary& summary) {
  const std::optional<double> reached = score(summary.evaluation);
  return fmt::format("{} {}, train loss {:.3f}, {:.0f} ms per step",
                     score_name(summary.evaluation.task),
                     reached ? fmt::format("{:.2f}", *reached) : "undefined", summary.train_loss,
                     1000 * summary.times.median_step);
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

/// Whether the error may be this mode's alone, so that the others are worth training.
bool is_of_mode(const std::exception& error) {
  if (threads_left_behind()) return false;
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
    runs.failed.push_back({run.mode, run.request.config.run.seed, error.what()});
    return false;
  }
}

/// Trains the runs of a plan one after the other, and tells of each.
class Training {
 public:
  Training(const CompareRequest& request, ComparisonPlan& plan) : request_(request), plan_(plan) {}

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
                                         run.mode, run.request.config.run.seed);
    std::optional<TrainSummary> have;
    world().on_first([&] { have = finished_run(run); });
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
    const bool together = !is_ghost(run.mode);
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
  ComparedRuns runs_;
  std::vector<std::chrono::duration<double>> trained_;
};

/// Hash of a run's configuration without what a comparison varies: mode, slices and seed.
std::string common_hash(const TrainSummary& run, const Tables& tables) {
  Config config = load_config(run.run / "config.toml", {}, nullptr, tables);
  config.run.seed = 0;
  config.bn.mode = BatchNormMode::kLocal;
  config.bn.virtual_devices = 1;
  config.batch.global = run.global_batch;
  config.batch.per_device.reset();
  return config_hash(config);
}

}  // namespace

ComparisonPlan plan_comparison(const CompareRequest& request) {
  const Config config = load_config(request.config, request.overrides, nullptr, *request.tables);
  const std::string devices = request.devices.empty() ? default_devices() : request.devices;
  ComparisonPlan plan;
  plan.layout = make_rank_layout(request.world, parse_devices(devices));
  plan.modes = modes_of(request);
  plan.folder = request.output.empty() ? config.run.work_dir / (config.run.name + "-compare")
                                       : request.output;
  const std::int64_t global_batch = config.global_batch(plan.layout.ranks());
  for (int seed = 0; seed < request.seeds; ++seed) {
    for (const std::string& mode : plan.modes) {
      TrainRequest run = make_request(request, plan, devices, mode, seed, global_batch);
      const std::string placement = is_ghost(mode) ? run.devices : plan.layout.placement(devices);
      plan.runs.push_back({mode, std::move(run), placement});
    }
  }
  return plan;
}

std::vector<std::string> describe(const ComparisonPlan& plan, int seeds) {
  std::vector<std::string> lines{
      fmt::format("compare: {} runs in {}", plan.runs.size(), plan.folder.string())};
  for (std::size_t i = 0; i < plan.modes.size(); ++i) {
    const PlannedRun& run = plan.runs[i];
    lines.push_back(fmt::format("  {}: {}", run.mode, run.placement));
    if (is_ghost(run.mode)) {
      lines.back() += fmt::format(", {} slices", run.request.config.bn.virtual_devices);
    }
  }
  if (plan.layout.ranks() == 1 && plan.modes.size() > 1) {
    lines.emplace_back(
        "  note: on one device local and sync are the same; -d cpu:4 makes four of it");
  }
  lines.push_back("  " + describe_power(seeds, static_cast<int>(plan.modes.size())));
  return lines;
}

std::optional<ComparedRuns> train_runs(const CompareRequest& request, ComparisonPlan& plan) {
  return Training(request, plan).run();
}

std::vector<fs::path> finished_run_folders(const fs::path& folder) {
  if (read_summary(folder)) return {folder};
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && read_summary(entry.path())) inside.push_back(entry.path());
  }
  if (inside.empty()) {
    throw DataError(concat(folder.string(), " holds no finished run (expected a folder that ",
                           "`lockstep train` or `lockstep compare` made)"));
  }
  std::sort(inside.begin(), inside.end());
  return inside;
}

std::vector<std::string> config_differences(const std::vector<TrainSummary>& runs,
                                            const Tables& tables) {
  std::vector<std::string> warnings;
  const std::string first = common_hash(runs.front(), tables);
  for (const TrainSummary& run : runs) {
    if (common_hash(run, tables) == first) continue;
    warnings.push_back(
        fmt::format("the configurations of {} and {} differ in more than mode and seed",
                    runs.front().run.string(), run.run.string()));
  }
  return warnings;
}

}  // namespace lockstep
