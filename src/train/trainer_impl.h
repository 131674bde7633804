#pragma once
// The trainer's state. Set-up, steps and reports are in trainer_setup.cpp, trainer.cpp and
// trainer_log.cpp.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/io/weights.h"
#include "run/metrics_file.h"
#include "run/rank_report.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "run/run_log.h"
#include "train/evaluator.h"
#include "train/fault_injection.h"
#include "train/trainer.h"
#include "train/training.h"

namespace lockstep {

/// Used by one thread, the caller's.
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);

  TrainSummary run();

 private:
  using Clock = std::chrono::steady_clock;

  /// While it lives, the world has a function to call (World::on_failure).
  class FailureListener {
   public:
    FailureListener(World& world, std::function<std::string(const std::string&)> say)
        : world_(world) {
      world_.on_failure(std::move(say));
    }
    FailureListener(const FailureListener&) = delete;
    FailureListener& operator=(const FailureListener&) = delete;
    ~FailureListener() { world_.on_failure(nullptr); }

   private:
    World& world_;
  };

  /// Seconds that one step took; `step`: since the end of the one before, if that was under way.
  struct StepSeconds {
    double step = 0, data = 0;
    StepTimes replicas;
  };

  // --- set-up ---
  void check_processes();
  void choose_folder();
  void find_folder();
  void lock_folder();
  void load_resume_point();
  void find_resume_point();
  void build();
  void make_alike_replicas();
  void warn_of_data();
  void set_aside_newer_checkpoints();
  void restore();
  void load_initial_weights();
  ImportSummary import_initial(const char* asked_by, const std::filesystem::path& path);
  void open_folder();
  void open_metrics_file();
  void listen_for_failures();
  void write_config();
  void log_start();

  // --- the loop ---
  bool logs_replicas() const { return config_.run.log_bn >= BatchNormLog::kDevices; }
  bool finished() const { return iteration_ >= max_iters_; }
  bool stop_requested();
  bool due(std::int64_t steps, std::int64_t every) const {
    return steps >= max_iters_ || (every > 0 && steps % every == 0);
  }
  void train_until_stopped();
  void begin_step();
  void issue_step();
  void finish_steps(std::int64_t steps);
  void finish_before_failure(std::int64_t steps);
  const Batch& next_batch();
  double stage_next_batch();
  void validate();
  void save(const std::string& name);
  void save_progress();
  TrainSummary finish();
  TrainSummary interrupt();
  [[noreturn]] void fail(const std::exception& error);

  // --- reports ---
  void log_step();
  void log_ranks();
  void log_batch_norms();
  void log_parts(const BatchNormReading& reading);
  void log_callbacks();
  void log_evaluation(const Evaluation& evaluation);
  void log_end(const std::string& status, int exit_code, Json details);
  void log_images();
  void write_metrics(const std::string& state);
  MeanTimes mean_times() const;
  std::vector<RankReport> report_ranks();
  double tail_loss() const;
  TrainSummary summarize(TrainStatus status);

  TrainRequest request_;
  World& world_;
  const Config& config_;
  std::vector<std::string> warnings_;
  std::string devices_text_;
  std::vector<Device> devices_;  // of this process
  RankLayout layout_;            // and of the others
  RunFolder folder_;
  std::optional<RunLock> lock_;  // of process 0
  FaultInjection fault_;
  std::optional<FoundCheckpoint> resumed_;
  std::vector<std::string> initial_weights_;  // what the run started from, where it fitted

  std::unique_ptr<TrainLoader> loader_;
  std::unique_ptr<DataParallel> replicas_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<RunLog> log_;
  std::optional<MetricsFile> metrics_file_;
  RunMetrics metrics_;
  std::vector<std::string> classes_;

  std::vector<Bytes> asked_;          // [process] to stop, before the present step
  const Batch* ahead_ = nullptr;      // the next step's batch, fetched during the present one
  std::exception_ptr ahead_failure_;  // why there is none
  std::int64_t max_iters_ = 0;
  std::int64_t begun_ = 0;      // steps, of which the last ones may be under way
  std::int64_t iteration_ = 0;  // steps done
  Clock::time_point lap_;       // when the last step was done, or the first of a row was begun
  std::int64_t epoch_ = 0;
  float lr_ = 0;
  float grad_norm_ = 0;  // of the last step; a double would show how the exchange cuts the sum
  std::optional<LossScaleState> loss_scale_;  // after the last step, with fp16
  std::vector<double> losses_;                // [iteration_]
  std::vector<StepSeconds> seconds_;          // of this process's steps
  std::int64_t warm_up_ = 0;                  // of them, which no mean counts
  RankTotals lap_ranks_;                      // since the last log line
  RankTotals all_ranks_;                      // without the warm-up
  std::int64_t logged_iteration_ = 0;
  std::int64_t validated_iteration_ = -1;  // in this process
  std::int64_t recorded_validation_ = -1;  // in scalars.json when the process started
  std::optional<double> best_score_;
  std::int64_t best_iter_ = 0;
  Evaluation evaluation_;  // the last one with bn.eval_stats
  std::vector<Evaluation> other_stats_;
  std::vector<BatchNormLens> lenses_;
  std::atomic<bool> recorded_error_{false};          // why the run ends is in its log
  std::optional<FailureListener> failure_listener_;  // last: reads the members above, on its thread
};

}  // namespace lockstep
