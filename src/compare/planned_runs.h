#pragma once
// The runs of a comparison: one for each mode and seed, each in an ordinary run folder. The rule: a
// folder that holds a finished run of the same configuration is never trained again.

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "train/trainer.h"

namespace lockstep {

struct CompareRequest {
  std::filesystem::path config;
  std::vector<std::string> overrides = {};  // "key=value"
  std::vector<std::string> modes = {};      // empty: local and sync; "auto": what diagnose names
  /// A curve: how many images share statistics, each; empty: those of a device.
  std::vector<std::int64_t> images = {};
  int seeds = 3;  // how many, from
  int first_seed = 0;
  std::string devices = {};              // DEVICES; empty: the default
  std::filesystem::path output = {};     // empty: <work_dir>/<name>-compare
  Console console = Console::kWarnings;  // of the runs
  std::string program = "lockstep";
  std::reference_wrapper<World> world = World::alone();
  const Tables* tables = &builtin_tables();
  bool other_data = false;  // go on beside runs that were trained with other data
  const std::atomic<bool>* stop = nullptr;
  /// Told a line about every run; only in process 0.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

struct PlannedRun {
  Cell cell;
  TrainRequest request;
  std::string placement;  // RankLayout::placement
};

struct ComparisonPlan {
  std::filesystem::path folder;
  RankLayout layout;  // of all processes, which have such devices each
  std::vector<std::string> modes;
  std::string why = {};          // these modes, where a diagnosis named them
  std::vector<Cell> cells;       // those of a seed
  std::vector<PlannedRun> runs;  // seed by seed, so that an unfinished comparison has whole seeds
};

/// Throws ConfigError when a mode or a number of images is named twice, when images do not fit the
/// batch and the devices, or a configuration cannot be read.
ComparisonPlan plan_comparison(const CompareRequest& request);

/// What will be trained and what so many seeds can show, in lines.
std::vector<std::string> describe(const ComparisonPlan& plan, int seeds);

/// How long a plan will take.
struct Estimate {
  double seconds = 0;
  std::size_t runs = 0;      // that are missing
  std::size_t measured = 0;  // cells whose steps were timed now; the others have finished runs
  std::vector<std::string> unknown = {};  // cells that could not be measured
};

/// Estimates the time of the runs that are missing: from a finished run of the same cell, or else
/// from a few steps of it. Throws nothing for a cell that cannot train.
Estimate estimate_time(const ComparisonPlan& plan);

/// In a line: of what the estimate is made.
std::string describe(const Estimate& estimate);

struct ComparedRuns {
  std::vector<TrainSummary> finished;
  std::vector<FailedRun> failed;
  std::exception_ptr first_failure;
};

/// Trains what is missing; every process takes part, and process 0 looks at the folders and has the
/// result. None when interrupted: the same call goes on. Throws ConfigError when a folder holds
/// a run with another configuration, or with other data unless `other_data`; and what train()
/// throws that is not of one mode alone.
std::optional<ComparedRuns> train_runs(const CompareRequest& request, ComparisonPlan& plan);

}  // namespace lockstep
