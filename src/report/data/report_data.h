#pragma once
// What a report is made of: run folders, read.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/comparison.h"
#include "report/page/plot.h"
#include "run/summary.h"

namespace lockstep {

/// A finished run or one that is still going on.
struct RunRecord {
  std::filesystem::path folder;
  std::string mode;  // on a curve the cell's label
  std::uint64_t seed = 0;
  std::string devices;
  Task task = Task::kSegmentation;
  std::optional<TrainSummary> summary;  // of a finished run

  std::vector<Point> train_loss, learning_rate, gradient_norm;  // over steps
  std::vector<Point> val_score, val_loss;
  std::vector<Point> step_seconds;         // means since the point before
  std::vector<BatchNormDiagnostics> lens;  // in order of steps, then of layers

  /// Key and value in TOML; empty where config.toml cannot be read, which `config_error` explains.
  std::vector<std::pair<std::string, std::string>> config;
  std::string config_error;
  std::map<std::string, std::string> environment;  // the plain values of env.json
  int cores = 0;                                   // of the machine; 0: unknown
};

/// Reads a run folder. Throws DataError when it is none, or damaged.
RunRecord read_run(const std::filesystem::path& folder, const Tables& tables);

/// The run folder itself, or those inside the folder of a comparison that are whole, in order of
/// their names; an unfinished run only where it is named itself. Throws DataError when there are
/// none.
std::vector<std::filesystem::path> run_folders(const std::filesystem::path& folder);

struct ReportData {
  std::string title;
  std::vector<RunRecord> runs;           // in order of modes, then of seeds
  std::optional<Comparison> comparison;  // of the finished runs; none: there are none

  /// In order of the comparison, then of first appearance.
  std::vector<std::string> modes() const;
  std::vector<const RunRecord*> of_mode(const std::string& mode) const;
  /// Not where there is one run alone, however it is evaluated.
  bool compares() const {
    return comparison && !comparison->pairs.empty() &&
           (comparison->modes.size() > 1 || comparison->modes.front().runs.size() > 1);
  }
  /// "mIoU" or "top1".
  std::string score() const;
};

/// Reads the runs. `comparison` in place of one made of the runs: it knows more warnings.
ReportData read_report(const std::vector<std::filesystem::path>& folders, const Tables& tables,
                       std::optional<Comparison> comparison = std::nullopt);

}  // namespace lockstep
