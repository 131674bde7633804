// lockstep compare: trains the runs (mode, seed) that are missing, and reports on all of them;
// given run folders it only reads.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/compare_runs.h"
#include "app/terminal.h"
#include "compare/comparison.h"
#include "compare/planned_runs.h"
#include "compare/present_runs.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "report/report_page.h"
#include "train/inference/image_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostImages = 1'000'000;
constexpr std::int64_t kMostFirstSeed = 1'000'000'000;

/// Lines for people: stdout, or stderr when stdout is for JSON.
void say(const CompareArguments& arguments, const std::string& line) {
  std::FILE* out = arguments.common.json ? stderr : stdout;
  fmt::print(out, "{}\n", line);
  std::fflush(out);
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

/// Returns the comparison's first lines, without tables all of them.
std::string report(const CompareArguments& arguments, const std::vector<TrainSummary>& runs,
                   const fs::path& folder, std::vector<FailedRun> failed = {},
                   const std::vector<std::string>& left_out = {}) {
  Comparison comparison = compare_runs(runs);
  comparison.warnings.insert(comparison.warnings.begin(), left_out.begin(), left_out.end());
  add_failed(comparison, std::move(failed));
  for (std::string& warning : config_differences(runs, *arguments.common.tables)) {
    comparison.warnings.push_back(std::move(warning));
  }
  const std::string json = to_json(comparison, folder);
  const std::string text = to_markdown(comparison);
  if (!folder.empty()) {
    write_file_atomically(folder / "comparison.json", json);
    write_file_atomically(folder / "comparison.md", text);
  }
  if (arguments.tables) {
    fmt::print("{}{}", arguments.common.json ? "" : "\n", arguments.common.json ? json : text);
  }
  if (!folder.empty()) write_page(arguments, runs, comparison, folder);
  return arguments.tables ? headline(comparison) : answers(comparison);
}

CompareRequest request_of(const CompareArguments& arguments) {
  CompareRequest request;
  request.config = arguments.inputs.front();
  request.overrides = arguments.common.overrides;
  request.modes = arguments.modes;
  request.images = arguments.images;
  request.seeds = arguments.seeds;
  request.first_seed = arguments.first_seed;
  request.devices = arguments.common.devices;
  request.output = arguments.common.output;
  const bool lines = arguments.verbose || isatty(STDOUT_FILENO) != 0;
  request.console = lines && !arguments.common.json ? Console::kStdout : Console::kWarnings;
  request.program = arguments.common.program;
  request.world = arguments.common.world;
  request.tables = arguments.common.tables;
  request.other_data = arguments.other_data;
  request.say = [&](const std::string& line) { say(arguments, line); };
  return request;
}

int compare_folders(const CompareArguments& arguments) {
  std::vector<TrainSummary> runs;
  std::vector<std::string> left_out;
  std::vector<FailedRun> failed;
  for (const fs::path& folder : arguments.inputs) {
    for (FailedRun& run : failed_runs(folder)) failed.push_back(std::move(run));
    for (const fs::path& run : finished_run_folders(folder)) runs.push_back(*read_summary(run));
    for (std::string& warning : left_out_runs(folder)) left_out.push_back(std::move(warning));
  }
  // Only what was asked for is written: reading leaves the runs' folders alone.
  if (!arguments.common.output.empty()) make_output_folder(arguments.common.output);
  report(arguments, runs, arguments.common.output, std::move(failed), left_out);
  return kExitDone;
}

/// Runs are compared as they are.
void check_for_folders(const Options& options, const CompareArguments& arguments) {
  std::error_code unknown;
  if (!fs::is_directory(arguments.inputs.front(), unknown)) return;
  for (const char* option : {"--modes", "--images-per-device", "--seeds", "--first-seed",
                             "--verbose", "--other-data", "--devices", "--set"}) {
    if (!options.given(option)) continue;
    throw ConfigError(fmt::format(
        "{} goes with a configuration to train; runs are compared as they are", option));
  }
}

void declare_compare(Options& options, CompareArguments& arguments) {
  options.add_config("INPUT", arguments.inputs, "one configuration, or run folders")
      .takes("CONFIG|RUN")
      .required();
  options
      .add("--modes", arguments.modes,
           "values of bn.mode, and sync:top:K: sync at the K layers that diagnose ranks first, "
           "local at others; auto: what diagnose names; default: local,sync")
      .takes("auto|local|sync|sync:top:3|ghost|group|instance|layer|frozen|renorm,...")
      .separated_by_commas();
  options
      .add("--images-per-device", arguments.images,
           "a curve: so many images of the batch share statistics, as slices of a device")
      .takes_count(1, kMostImages)
      .takes("N,...")
      .separated_by_commas();
  options.add_flag("--verbose,-v", arguments.verbose,
                   "print the runs' own lines also where the output is no terminal");
  options.add_flag("--no-images", arguments.no_images,
                   "no example images in report.html, for which the networks must be run");
  options.add_flag("--other-data", arguments.other_data,
                   "go on beside runs that were trained before the data changed");
  options.add("--seeds", arguments.seeds, "how many: seeds 0 .. N-1")
      .shows_default()
      .takes_count(1, 1000);
  options.add("--first-seed", arguments.first_seed, "in place of 0").takes_count(0, kMostFirstSeed);
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
  const ComparedModes compared = train_and_compare(arguments);
  if (!compared.answer.empty()) say(arguments, "\n" + compared.answer);
  return compared.exit_code;
}

}  // namespace

ComparedModes train_and_compare(const CompareArguments& arguments) {
  CompareRequest request = request_of(arguments);
  ComparisonPlan plan = plan_comparison(request);
  const bool first = arguments.common.world.get().first();
  for (const std::string& line : describe(plan, arguments.seeds)) {
    if (first) say(arguments, line);
  }
  // Before so many trainings one wants to know; only then is it worth the steps.
  if (!arguments.images.empty()) say(arguments, "  " + describe(estimate_time(plan)));
  std::optional<ComparedRuns> runs;
  {
    const StopSignals signals;
    request.stop = &signals.requested();
    runs = train_runs(request, plan);
  }
  if (!first) return {runs ? kExitDone : kExitInterrupted};
  if (!runs) {
    say(arguments, "compare: interrupted; the same command continues where this one stopped");
    return {kExitInterrupted};
  }
  if (runs->finished.empty()) std::rethrow_exception(runs->first_failure);
  const bool whole = runs->failed.empty();
  std::string answer = report(arguments, runs->finished, plan.folder, std::move(runs->failed));
  return {whole ? kExitDone : kExitFailure, std::move(answer)};
}

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
           {"lockstep compare data/configs/quickstart.toml --modes local,sync "
            "--images-per-device 1,2,4 -s batch.global=8 --seeds 2 -d cpu:1 -o runs/curve",
            "the curve: what 1, 2 and 4 images per device reach"},
           {"lockstep compare runs/compare --json", "the table of trainings that are there"}},
      .by_several_processes = true,
      .declare = declares(declare_compare, run_compare)};
}

}  // namespace lockstep
