#pragma once
// What a run says to people: step lines, the card at the end, times.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "run/summary.h"

namespace lockstep {

/// Means over the steps since the last log line, but for the rate and the norm, which are those of
/// the last step; times in seconds.
struct StepReport {
  std::int64_t iteration = 0;  // steps done
  std::int64_t max_iters = 0;
  std::int64_t epoch = 0;
  double lr = 0;
  double grad_norm = 0;                           // NaN: that step was left out
  std::optional<LossScaleState> loss_scale = {};  // with fp16
  double loss = 0;
  double time = 0, data_time = 0, compute = 0, batch_norm_wait = 0, exchange = 0;
  double eta = 0;     // seconds to the last step
  double memory = 0;  // MB
};

/// What windows say of one another, in a sentence.
std::string format_mismatch(const TileMismatch& mismatch);

/// mmengine's line: "Iter(train) [  50/400]  lr: 9.9891e-03  eta: 0:05:20  time: 0.5012  ...".
std::string format_step(const StepReport& report);
/// "Iter(val) [100/100]  aAcc: 81.2000  mIoU: 40.6000  mAcc: 51.1600  loss: 0.6123  time: 0.0510".
std::string format_validation(const Evaluation& evaluation);
/// That the loss is not finite, and what follows; nullopt where it is, or where no label counts.
std::optional<std::string> loss_warning(const Evaluation& evaluation);
/// `word` as a POSIX shell reads it back: as it stands, or in single quotes where it holds anything
/// that a shell would take apart or replace.
std::string shell_word(const std::string& word);
/// "1:02:03".
std::string format_duration(double seconds);
/// "runs/a/ckpt/last.safetensors, step 40, on cpu:4"; the step where it is known (not -1).
/// `by_default`: nobody asked for these devices.
std::string format_checkpoint(const std::filesystem::path& checkpoint, std::int64_t iteration,
                              const std::string& devices, bool by_default);
/// "41.20", or "-" when undefined.
std::string format_percent(const std::optional<double>& value);
/// The per-class table and the means as text, as `train` and `eval` show them.
std::string format_evaluation(const Evaluation& evaluation,
                              const std::vector<std::string>& classes);
/// A table with a line per rank: times per step (those of waiting only where threads do it) and
/// memory; and, where they were read, whether the replicas are equal.
std::string format_ranks(std::span<const RankReport> ranks);
/// The card at the end: metrics, classes, time split, ranks where there are several, what to do
/// next.
std::string format_summary(const TrainSummary& summary, const std::string& program);

}  // namespace lockstep
