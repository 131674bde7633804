#pragma once
// What a run tells while it trains, and the interface of those who write it down. A new kind of
// file is a RunSink in a file of its own, and a line in recorder.cpp.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "lockstep/data/dataset.h"
#include "run/batch_norm_diagnostics.h"
#include "run/disparity.h"
#include "run/report_text.h"
#include "run/run_folder.h"
#include "run/summary.h"

namespace lockstep {

/// Where the lines for people go; run.log always has them. kWarnings: those alone, to stderr.
enum class Console : std::uint8_t { kStdout, kWarnings, kQuiet };

/// A run as it begins, or goes on.
struct RunDescription {
  const Config& config;
  RunFolder folder;
  Console console = Console::kStdout;
  bool first_process = true;  // the others keep logs alone
  std::string devices;        // DEVICES, of this process
  bool tf32 = false;          // whether GPUs round fp32 convolutions to TF32, where they have it
  std::string bf16_products;  // what CPU devices multiply bf16 numbers by, where they may
  bool devices_by_default = false;
  int device_count = 0;   // of all processes
  std::string threads;    // of CPU devices, as they were chosen
  std::string processes;  // where there are several
  CellLabels cell;
  std::string transport;                           // of statistics, as it was chosen
  std::string gradient_exchange, exchange_reason;  // as they were chosen, and why
  std::optional<std::string> convolutions;         // summarize_choices
  Json environment;                                // describe_environment
  Json data;        // what the samples' files hold: "hash", "files"; empty: they are in none
  Json algorithms;  // of a GPU's convolutions; else empty
  Size size;        // of training images
  std::int64_t parameters = 0;
  std::int64_t step = 0;  // steps done
  std::int64_t max_iters = 0, steps_per_epoch = 0;
  std::optional<double> best_score;
  std::filesystem::path resumed;     // the checkpoint; empty: a new run
  std::vector<std::string> started;  // from which weights, line by line
};

struct NamedImage {
  std::string name;
  Image image;
};

struct EvaluationRecord {
  std::int64_t step = 0;
  const Evaluation& evaluation;
  const std::vector<std::string>& classes;
  bool chosen = true;                // under bn.eval_stats, not one more of others
  std::optional<double> best_score;  // so far, with this one
  /// How an evaluation by batch statistics compares with the chosen one.
  std::optional<StatisticsScores> disparity = {};
  std::vector<NamedImage> images = {};
  bool known = false;  // the run had written this step's scores before it was resumed
};

/// The BatchNorm layers after a step.
struct BatchNormRecord {
  std::int64_t step = 0;
  std::vector<BatchNormDiagnostics> layers;
  /// What they come from; null: it is not recorded.
  const BatchNormReading* reading = nullptr;
  bool channels = false;                                // of `reading`, every channel
  std::int64_t forward = 0, backward = 0, barrier = 0;  // callbacks so far, with `reading`
};

struct RunEnd {
  std::int64_t step = 0;
  std::string status;  // done, interrupted, failed
  int exit_code = 0;
  Json details = {};                    // of the `end` line
  std::string warning = {}, text = {};  // for people; `text` without time and level
  bool stalled = false;
};

/// Used by the trainer's thread, between steps. Throws Error when it cannot write.
class RunSink {
 public:
  RunSink() = default;
  RunSink(const RunSink&) = delete;
  RunSink& operator=(const RunSink&) = delete;
  virtual ~RunSink() = default;

  virtual void begin(const RunDescription&) {}
  virtual void step(const StepReport&) {}
  /// A line of scalars.json: numbers that configuration and device count alone decide, each with
  /// its name, under "mode" (train, val) and "step".
  virtual void scalars(const Json&) {}
  virtual void ranks(std::int64_t /*step*/, std::span<const RankReport>) {}
  virtual void batch_norms(const BatchNormRecord&) {}
  virtual void evaluation(const EvaluationRecord&) {}
  virtual void checkpoint(std::int64_t /*step*/, const std::string& /*path*/) {}
  virtual void warning(std::int64_t /*step*/, const std::string& /*text*/) {}
  virtual void end(const RunEnd&) {}
};

}  // namespace lockstep
