// lockstep compare: trains the cells (mode, seed) that are missing, each an ordinary run folder,
// and reports on all of them; given run folders it only reads.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/terminal.h"
#include "compare/comparison.h"
#include "config/config.h"
#include "io/atomic_file.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/core/device.h"
#include "lockstep/parallel/data_parallel.h"
#include "report/report_page.h"
#include "run/report_text.h"
#include "train/inference/image_files.h"
#include "train/trainer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct CompareArguments {
  CommonArguments common;
  std::vector<std::filesystem::path> inputs;  // one CONFIG, or run folders
  std::vector<std::string> modes;             // --modes local,sync,ghost
  int seeds = 3;                              // --seeds N: seeds 0 .. N-1
  bool verbose = false;                       // --verbose: the runs' own lines, too
  bool no_images = false;                     // --no-images: none in report.html
};

struct Cell {
  std::string mode;
  TrainRequest request;
  std::string placement;
};

/// Lines for people: stdout, or stderr when stdout is for JSON.
void say(const CompareArguments& arguments, const std::string& line) {
  std::FILE* out = arguments.common.json ? stderr : stdout;
  fmt::print(out, "{}\n", line);
  std::fflush(out);
}

bool is_ghost(const std::string& mode) { return mode == to_string(BatchNormMode::kGhost); }

/// One device of the same kind, for mode ghost.
std::string single_device(const Device& device) {
  return device.kind == DeviceKind::kCpu ? "cpu:1" : "cuda:" + std::to_string(device.ordinal);
}

bool overrides_key(const std::vector<std::string>& overrides, const std::string& key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& text) { return text.starts_with(key + "="); });
}

std::vector<std::string> modes_of(const CompareArguments& arguments) {
  std::vector<std::string> modes = arguments.modes;
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

/// The overrides that make a cell of the configuration. A slice of mode `ghost` takes the place of
/// a device: one device, as many slices as there are devices, the same global batch.
std::vector<std::string> cell_overrides(const CompareArguments& arguments, const std::string& mode,
                                        int seed, int devices, std::int64_t global_batch) {
  std::vector<std::string> overrides = arguments.common.overrides;
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

struct Plan {
  fs::path folder;
  std::string devices;
  RankLayout layout;  // of all processes, which have such devices each
  std::vector<std::string> modes;
  std::vector<Cell> cells;  // seed by seed, so that an unfinished comparison has whole seeds
};

/// The one that a comparison has begun under the mode's former name goes on.
fs::path run_folder_of(const fs::path& comparison, const std::string& mode, int seed) {
  const fs::path former = comparison / fmt::format("virtual-s{}", seed);
  if (is_ghost(mode) && fs::exists(former)) return former;
  return comparison / fmt::format("{}-s{}", mode, seed);
}

TrainRequest make_request(const CompareArguments& arguments, const Plan& plan,
                          const std::string& mode, int seed, std::int64_t global_batch) {
  const std::vector<Device> devices = parse_devices(plan.devices);
  TrainRequest request;
  request.config =
      load_config(arguments.inputs.front(),
                  cell_overrides(arguments, mode, seed, plan.layout.ranks(), global_batch),
                  &request.warnings, *arguments.common.tables);
  request.devices = is_ghost(mode) ? single_device(devices.front()) : plan.devices;
  request.output = run_folder_of(plan.folder, mode, seed);
  const bool lines = arguments.verbose || isatty(STDOUT_FILENO) != 0;
  request.console = lines && !arguments.common.json ? Console::kStdout : Console::kWarnings;
  request.program = arguments.common.program;
  return request;
}

Plan make_plan(const CompareArguments& arguments) {
  const Config config = load_config(arguments.inputs.front(), arguments.common.overrides, nullptr,
                                    *arguments.common.tables);
  Plan plan;
  plan.devices = arguments.common.devices.empty() ? default_devices() : arguments.common.devices;
  plan.layout = make_rank_layout(arguments.common.world, parse_devices(plan.devices));
  plan.modes = modes_of(arguments);
  plan.folder = arguments.common.output.empty()
                    ? config.run.work_dir / (config.run.name + "-compare")
                    : arguments.common.output;
  const std::int64_t global_batch = config.global_batch(plan.layout.ranks());
  for (int seed = 0; seed < arguments.seeds; ++seed) {
    for (const std::string& mode : plan.modes) {
      TrainRequest request = make_request(arguments, plan, mode, seed, global_batch);
      const std::string placement =
          is_ghost(mode) ? request.devices : plan.layout.placement(plan.devices);
      plan.cells.push_back({mode, std::move(request), placement});
    }
  }
  return plan;
}

void announce(const CompareArguments& arguments, const Plan& plan) {
  say(arguments, fmt::format("compare: {} runs in {}", plan.cells.size(), plan.folder.string()));
  for (std::size_t i = 0; i < plan.modes.size(); ++i) {
    const Cell& cell = plan.cells[i];
    std::string line = fmt::format("  {}: {}", cell.mode, cell.placement);
    if (is_ghost(cell.mode)) {
      line += fmt::format(", {} slices", cell.request.config.bn.virtual_devices);
    }
    say(arguments, line);
  }
  if (plan.layout.ranks() == 1 && plan.modes.size() > 1) {
    say(arguments, "  note: on one device local and sync are the same; -d cpu:4 makes four of it");
  }
  say(arguments, "  " + describe_power(arguments.seeds, static_cast<int>(plan.modes.size())));
}

/// Throws ConfigError unless the run in the cell's folder is a run of this very cell.
void check_same(const Cell& cell, const std::string& hash, const std::string& placement) {
  const std::string expected = config_hash(cell.request.config);
  if (hash == expected && (placement.empty() || placement == cell.placement)) return;
  throw ConfigError(fmt::format(
      "{} holds a run with another configuration{}; choose another folder with -o, or remove it",
      cell.request.output.string(),
      hash == expected ? " (devices " + placement + ", now " + cell.placement + ")" : ""));
}

/// The cell's finished run, if there is one. An unfinished one is prepared to be resumed.
std::optional<TrainSummary> finished_run(Cell& cell) {
  const fs::path& folder = cell.request.output;
  if (std::optional<TrainSummary> summary = read_summary(folder)) {
    check_same(cell, summary->config_hash, summary->placement);
    return summary;
  }
  if (fs::exists(folder / "config.toml")) {
    const Tables& tables = *cell.request.config.tables;
    check_same(cell, config_hash(load_config(folder / "config.toml", {}, nullptr, tables)), "");
    cell.request.resume = "auto";
  }
  return std::nullopt;
}

std::string describe_cell(const TrainSummary& summary) {
  const std::optional<double> reached = score(summary.evaluation);
  return fmt::format("{} {}, train loss {:.3f}, {:.0f} ms per step",
                     score_name(summary.evaluation.task),
                     reached ? fmt::format("{:.2f}", *reached) : "undefined", summary.train_loss,
                     1000 * summary.times.median_step);
}

/// What the cells from `next` on will take, by the mean of those that this process has trained.
/// Some may be done before; they are looked at when their turn comes.
std::string describe_rest(const std::vector<std::chrono::duration<double>>& trained,
                          const Plan& plan, std::size_t next) {
  if (next == plan.cells.size()) return "";
  const auto sum = std::accumulate(trained.begin(), trained.end(), std::chrono::duration<double>{});
  const double mean = sum.count() / static_cast<double>(trained.size());
  const auto missing =
      std::count_if(plan.cells.begin() + static_cast<std::ptrdiff_t>(next), plan.cells.end(),
                    [](const Cell& cell) { return !read_summary(cell.request.output); });
  if (missing == 0) return "";
  return fmt::format(", in {}; about {} to the end", format_duration(trained.back().count()),
                     format_duration(mean * static_cast<double>(missing)));
}

struct CellRuns {
  std::vector<TrainSummary> finished;
  std::vector<FailedRun> failed;
  std::exception_ptr first_failure;
};

/// Whether the error may be this mode's alone, so that the others are worth training.
bool is_of_mode(const std::exception& error) {
  if (threads_left_behind()) return false;
  return dynamic_cast<const ConfigError*>(&error) != nullptr ||
         dynamic_cast<const NonFiniteError*>(&error) != nullptr ||
         dynamic_cast<const ReplicaError*>(&error) != nullptr;
}

/// Trains the cell; false: it cannot be trained, which `runs` then holds. Several processes end
/// with the first failure.
bool train_cell(const Cell& cell, bool alone, CellRuns& runs) {
  try {
    runs.finished.push_back(train(cell.request));
    return true;
  } catch (const Error& error) {
    if (!alone || !is_of_mode(error)) throw;
    if (!runs.first_failure) runs.first_failure = std::current_exception();
    runs.failed.push_back({cell.mode, cell.request.config.run.seed, error.what()});
    return false;
  }
}

/// Trains what is missing; every process takes part, and process 0 looks at the folders.
/// Returns nothing when interrupted.
std::optional<CellRuns> run_cells(const CompareArguments& arguments, Plan& plan) {
  const StopSignals signals;
  auto& world = arguments.common.world.get();
  const auto tell = [&](const std::string& line) { world.on_first([&] { say(arguments, line); }); };
  CellRuns runs;
  std::vector<std::chrono::duration<double>> trained;
  for (std::size_t i = 0; i < plan.cells.size(); ++i) {
    Cell& cell = plan.cells[i];
    const std::string name = fmt::format("[{}/{}] {} seed {}", i + 1, plan.cells.size(), cell.mode,
                                         cell.request.config.run.seed);
    std::optional<TrainSummary> have;
    world.on_first([&] { have = finished_run(cell); });
    const std::string work = have ? "done" : cell.request.resume ? "resuming" : "training";
    const std::string agreed = world.broadcast(work);
    if (agreed == "done") {
      if (have) tell(name + ": done before, " + describe_cell(*have));
      if (have) runs.finished.push_back(std::move(*have));
      continue;
    }
    tell(fmt::format("{}: {} (log: {})", name, agreed, (cell.request.output / "run.log").string()));
    // Mode ghost takes one device, which process 0 has.
    const bool alone = is_ghost(cell.mode);
    if (agreed == "resuming") cell.request.resume = "auto";
    if (!alone) cell.request.world = world;
    cell.request.stop = &signals.requested();
    const auto begin = std::chrono::steady_clock::now();
    if (world.first() || !alone) {
      if (!train_cell(cell, world.size() == 1, runs)) {
        tell(fmt::format("{}: cannot train: {}", name, runs.failed.back().error));
        continue;
      }
    }
    const bool interrupted =
        world.first() && runs.finished.back().status == TrainStatus::kInterrupted;
    if (world.broadcast(interrupted ? "interrupted" : "") == "interrupted") return std::nullopt;
    if (!world.first()) continue;
    trained.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin));
    tell(name + ": " + describe_cell(runs.finished.back()) + describe_rest(trained, plan, i + 1));
  }
  return runs;
}

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

std::vector<std::string> find_config_differences(const std::vector<TrainSummary>& runs,
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

/// The page beside comparison.json. What keeps it from being made is no failure of the comparison.
void write_page(const CompareArguments& arguments, const std::vector<TrainSummary>& runs,
                const Comparison& comparison, const fs::path& folder) {
  std::vector<fs::path> folders;
  for (const TrainSummary& run : runs) folders.push_back(run.run);
  const fs::path path = folder / "report.html";
  try {
    ReportData data = read_report(folders, *arguments.common.tables, comparison);
    data.title = report_title(folder);
    std::optional<Examples> examples;
    if (!arguments.no_images) examples = find_examples(data, *arguments.common.tables);
    write_file_atomically(path, make_report(data, examples ? &*examples : nullptr).html());
    say(arguments, "report: " + path.string());
  } catch (const std::exception& error) {
    say(arguments, fmt::format("warning: {} was not written: {}", path.string(), error.what()));
  }
}

void report(const CompareArguments& arguments, const std::vector<TrainSummary>& runs,
            const fs::path& folder, std::vector<FailedRun> failed = {}) {
  Comparison comparison = compare_runs(runs);
  add_failed(comparison, std::move(failed));
  for (std::string& warning : find_config_differences(runs, *arguments.common.tables)) {
    comparison.warnings.push_back(std::move(warning));
  }
  const std::string json = to_json(comparison);
  const std::string text = to_markdown(comparison);
  if (!folder.empty()) {
    write_file_atomically(folder / "comparison.json", json);
    write_file_atomically(folder / "comparison.md", text);
  }
  fmt::print("{}{}", arguments.common.json ? "" : "\n", arguments.common.json ? json : text);
  if (!folder.empty()) write_page(arguments, runs, comparison, folder);
}

int train_and_compare(const CompareArguments& arguments) {
  Plan plan = make_plan(arguments);
  const bool first = arguments.common.world.get().first();
  if (first) announce(arguments, plan);
  auto runs = run_cells(arguments, plan);
  if (!first) return runs ? kExitDone : kExitInterrupted;
  if (!runs) {
    say(arguments, "compare: interrupted; the same command continues where this one stopped");
    return kExitInterrupted;
  }
  if (runs->finished.empty()) std::rethrow_exception(runs->first_failure);
  const bool whole = runs->failed.empty();
  report(arguments, runs->finished, plan.folder, std::move(runs->failed));
  return whole ? kExitDone : kExitFailure;
}

/// The run itself, or all finished runs of a comparison's folder, in order of their names.
std::vector<TrainSummary> read_runs(const fs::path& folder) {
  if (std::optional<TrainSummary> summary = read_summary(folder)) return {std::move(*summary)};
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) inside.push_back(entry.path());
  }
  std::sort(inside.begin(), inside.end());
  std::vector<TrainSummary> runs;
  for (const fs::path& path : inside) {
    if (std::optional<TrainSummary> summary = read_summary(path)) {
      runs.push_back(std::move(*summary));
    }
  }
  if (runs.empty()) {
    throw DataError(folder.string() + " holds no finished run (expected a folder that " +
                    "`lockstep train` or `lockstep compare` made)");
  }
  return runs;
}

int compare_folders(const CompareArguments& arguments) {
  std::vector<TrainSummary> runs;
  for (const fs::path& folder : arguments.inputs) {
    for (TrainSummary& run : read_runs(folder)) runs.push_back(std::move(run));
  }
  // Only what was asked for is written: reading leaves the runs' folders alone.
  if (!arguments.common.output.empty()) make_output_folder(arguments.common.output);
  report(arguments, runs, arguments.common.output);
  return kExitDone;
}

/// Runs are compared as they are.
void check_for_folders(const Options& options, const CompareArguments& arguments) {
  std::error_code unknown;
  if (!fs::is_directory(arguments.inputs.front(), unknown)) return;
  for (const char* option : {"--modes", "--seeds", "--verbose", "--devices", "--set"}) {
    if (!options.given(option)) continue;
    throw ConfigError(fmt::format(
        "{} goes with a configuration to train; runs are compared as they are", option));
  }
}

void declare_compare(Options& options, CompareArguments& arguments) {
  options.add_config("INPUT", arguments.inputs, "one configuration, or run folders")
      .takes("CONFIG|RUN")
      .required();
  options.add("--modes", arguments.modes, "of local, sync, ghost; default: local,sync")
      .takes("local|sync|ghost,...")
      .separated_by_commas();
  options.add_flag("--verbose,-v", arguments.verbose,
                   "print the runs' own lines also where the output is no terminal");
  options.add_flag("--no-images", arguments.no_images,
                   "no example images in report.html, for which the networks must be run");
  options.add("--seeds", arguments.seeds, "how many: seeds 0 .. N-1")
      .shows_default()
      .takes_count(1, 1000);
  options.add_devices();
  options.add_overrides();
  options.add_output("DIR", "folder of the comparison");
  options.add_json();
  options.after_parsing([&] { check_for_folders(options, arguments); });
}

int run_compare(const CompareArguments& arguments) {
  if (arguments.inputs.empty()) {
    throw ConfigError("compare needs a configuration file or run folders");
  }
  const bool folders = fs::is_directory(arguments.inputs.front());
  if (folders) {
    check_alone("compare of run folders");
    return compare_folders(arguments);
  }
  if (arguments.inputs.size() > 1) {
    throw ConfigError("compare takes one configuration file, or run folders: " +
                      arguments.inputs.front().string() + " is not a folder");
  }
  return train_and_compare(arguments);
}

}  // namespace

Command compare_command() {
  return {
      .name = "compare",
      .says = "Train a configuration in several BatchNorm modes and seeds, or compare runs",
      .page = "compare",
      .examples =
          {{"lockstep compare data/configs/quickstart.toml --modes local,sync --seeds 2 -d cpu:4 "
            "-o runs/compare",
            "four trainings, a table and report.html; the same command goes on after an "
            "interruption"},
           {"lockstep compare runs/compare --json", "the table of trainings that are there"}},
      .by_several_processes = true,
      .declare = declares(declare_compare, run_compare)};
}

}  // namespace lockstep
