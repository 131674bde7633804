#pragma once
// What the steps of a training come to: losses, times, and what each rank did.

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/parallel/options.h"
#include "run/checkpoint.h"
#include "run/report_text.h"

namespace lockstep {

/// Adds up what the ranks did, step by step; allocates only when it is made and asked.
class RankTotals {
 public:
  explicit RankTotals(std::span<const Device> devices);

  /// [rank].
  void add(std::span<const RankStep> step);
  void clear();
  /// [rank], over the steps since the last `clear`; empty when there were none.
  std::vector<RankReport> reports() const;

 private:
  std::vector<RankReport> sums_;  // [rank]
  std::int64_t steps_ = 0;
};

/// Told of every step as it is begun and as it is done; several may be under way. Used by the
/// trainer's thread. A step allocates nothing in it.
class StepMeter {
 public:
  /// `from`: the state that the training goes on from.
  StepMeter(std::span<const Device> devices, const TrainingState& from, std::int64_t max_iters,
            std::int64_t log_every);

  std::int64_t begun() const { return begun_; }
  std::int64_t done() const { return done_; }
  const std::vector<double>& losses() const { return losses_; }  // [step] of the whole run

  /// The next step comes now; its time counts from here unless another is under way.
  void start_clock();
  void begin(double lr, std::int64_t epoch, double data_seconds);
  /// More waiting for data during the step that was begun last.
  void add_data_seconds(double seconds) { seconds_.back().data += seconds; }
  void finish(const StepResult& result);

  /// What the steps since the last report came to, and its ranks', which are then forgotten.
  StepReport report();
  std::vector<RankReport> report_ranks();

  // Over the steps of this process without the first few, which warm caches and allocators up.
  MeanTimes mean_times() const;
  std::vector<RankReport> mean_ranks() const { return all_ranks_.reports(); }
  /// Mean over the last tenth of the steps (1 to 100 of them).
  double tail_loss() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// Seconds of one step. `step`: since the end of the one before, if that was under way.
  struct StepSeconds {
    double step = 0, data = 0;
    StepTimes replicas;
  };

  std::int64_t max_iters_, begun_, done_;
  std::int64_t reported_;       // steps that reports have told of
  std::int64_t warm_up_;        // steps of this process
  Clock::time_point lap_;       // when the last step was done, or the first of a row was begun
  std::vector<double> losses_;  // [done_]
  std::vector<StepSeconds> seconds_;  // of this process's steps
  RankTotals lap_ranks_, all_ranks_;  // since the last report; without the warm-up
  std::int64_t epoch_ = 0;
  double lr_ = 0;
  float grad_norm_ = 0;  // of the last step; a double would show how the exchange cuts the sum
  std::optional<LossScaleState> loss_scale_;  // after the last step, with fp16
};

}  // namespace lockstep
