#pragma once
// What a finished run has to say, in memory and in its folder (the `end` line of events.jsonl).
// `compare` works from this alone, so that a run made earlier counts like one made now.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/parallel/options.h"
#include "run/batch_norm_diagnostics.h"
#include "run/confusion_matrix.h"

namespace lockstep {

/// An evaluation of the validation split.
struct Evaluation {
  EvalStats eval_stats = EvalStats::kDevice0;
  bool averaged = false;  // of the weights' moving average (ema.decay)
  Task task = Task::kSegmentation;
  ConfusionMetrics metrics;    // its terms are pixels, or images
  std::optional<double> top5;  // classification: percent of images
  std::optional<double> loss;  // mean over labelled pixels or images; undefined without any
  std::int64_t images = 0;
  std::int64_t together = 0;  // images that were normalised together; 0: by running statistics
  double seconds = 0;
  std::optional<TileMismatch> mismatch;  // in windows (eval.window)
  std::vector<std::int64_t> confusion;   // [classes, classes]
};

/// What lines of logs call it: "val", or "val_ema" where it is the average's.
const char* mode_of(const Evaluation& evaluation);

/// What runs of a task are compared by: "mIoU" or "top1".
const char* score_name(Task task);
/// It, in percent; undefined, too, where the loss is not finite: the outputs then are not, and
/// which class is the largest says nothing.
std::optional<double> score(const Evaluation& evaluation);

/// Seconds per step, means over the steps of this process without the first few.
struct MeanTimes {
  double step = 0;  // data, replicas' work and everything between
  double data = 0;  // waiting for the loader
  double compute = 0;
  double batch_norm_wait = 0;
  double gradient_exchange = 0;
  double median_step = 0;

  /// False: no step was timed, as where a run was only evaluated again.
  bool known() const { return median_step > 0; }
};

/// What one rank did over some steps: means per step, and the memory after the last of them.
struct RankReport {
  int rank = 0;
  std::string device;
  double loss = 0;  // of its shards: the ranks' losses add up to the mean loss
  StepTimes times = {};
  std::size_t memory_bytes = 0;       // that its backend holds
  std::size_t peak_memory_bytes = 0;  // the most that it has held at a time, since the start

  // By `add_digests`. Equal hashes mean equal bits.
  std::string weights_hash = {};     // 16 hex digits, of all parameters; empty: not read
  std::string statistics_hash = {};  // of running statistics and their counts of batches
  std::optional<float> smallest_running_var = {};  // of all layers and channels; none: not tracked
};

/// Which cell of a comparison a run is. Whoever trains and records it passes this on.
struct CellLabels {
  /// On a curve over them: how many images share statistics; 0: of no curve.
  std::int64_t images_per_device = 0;
  /// Of how many layers bn.sync_layers is because a diagnosis has chosen them (with_sync_layers);
  /// 0: whoever wrote the configuration did.
  int sync_top = 0;
};

enum class TrainStatus : std::uint8_t { kDone, kInterrupted };

struct TrainSummary {
  TrainStatus status = TrainStatus::kDone;
  std::filesystem::path run;  // the run folder
  std::string config_hash;
  std::string data_hash = {};  // Fingerprint::hash; empty: of generated images, or not known
  std::string bn_mode;
  CellLabels cell = {};
  /// bn.sync_layers where the mode minds them; empty: layers are all alike.
  std::vector<std::string> sync_layers = {};
  std::uint64_t seed = 0;
  std::string devices;    // of a process, as parse_devices reads it
  std::string placement;  // RankLayout::placement
  int device_count = 0;
  std::int64_t global_batch = 0;
  std::int64_t iterations = 0;  // done
  std::int64_t max_iters = 0;
  std::int64_t parameters = 0;
  std::vector<std::string> classes;

  Evaluation evaluation;  // with the final weights and bn.eval_stats; empty when interrupted
  std::vector<Evaluation>
      other_stats;  // the same weights under others: run.eval_all_stats, run.eval_disparity
  std::optional<double> best_score;
  std::int64_t best_iter = 0;

  double train_loss = 0;  // mean over the last tenth of the steps (1 to 100 of them)
  MeanTimes times;
  double images_per_second = 0;
  double waiting_share = 0;       // batch_norm_wait / step
  bool shares_cores = false;      // more virtual devices than cores: they wait for one
  double peak_memory_mb = 0;      // of the process
  std::vector<RankReport> ranks;  // over the same steps as `times`; empty without any
  std::vector<BatchNormDiagnostics> batch_norms;  // of the last step
};

/// What the run in `run` was last trained on (Fingerprint::hash), finished or not; empty: images
/// are generated, or the run does not say.
std::string data_hash_of(const std::filesystem::path& run);

/// The summary of the completed run in `run`; nullopt when there is no completed run. Throws
/// DataError when its files are damaged.
std::optional<TrainSummary> read_summary(const std::filesystem::path& run);

}  // namespace lockstep
