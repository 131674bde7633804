#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/seconds_since.h"
#include "lockstep/core/check.h"
#include "lockstep/optim/schedule.h"
#include "run/exit_code.h"
#include "run/report_text.h"
#include "run/shell_word.h"
#include "run/summary_json.h"
#include "train/trainer_impl.h"

namespace lockstep {
TrainSummary Trainer::run() {
  try {
    train_until_stopped();
    return finished() ? finish() : interrupt();
  } catch (const std::exception& error) {
    fail(error);
  }
}

// GPUs are given the next step before the present one is finished. Where something looks at what a
// step has left behind, there is none under way.
void Trainer::train_until_stopped() {
  while (begun_ < max_iters_ && !stop_requested()) {
    begin_step();
    const bool pause = due(begun_, config_.run.log_every) || due(begun_, config_.run.val_every) ||
                       due(begun_, config_.run.checkpoint_every);
    finish_steps(pause ? begun_ : begun_ - replicas_->steps_ahead());
    if (due(begun_, config_.run.log_every)) log_step();
    // A validation may fail at an image of its own: what was trained is safe by then.
    if (begun_ == max_iters_) save("last");
    if (due(begun_, config_.run.val_every)) validate();
    if (due(begun_, config_.run.checkpoint_every)) save_progress();
  }
  finish_steps(begun_);
}

// One process that is asked to stop stops all.
bool Trainer::stop_requested() {
  const bool asked = request_.stop != nullptr && request_.stop->load();
  const auto own = static_cast<std::byte>(asked);
  replicas_->all_gather({&own, 1}, asked_);
  return std::any_of(asked_.begin(), asked_.end(),
                     [](const Bytes& theirs) { return theirs.front() != std::byte{0}; });
}

// Of a step: the next global batch, every replica's forward and backward pass and the update.
void Trainer::begin_step() {
  const std::int64_t before = begun_;
  try {
    if (before == iteration_) lap_ = Clock::now();
    issue_step();
  } catch (const std::exception&) {
    finish_before_failure(before);
    throw;
  }
}

void Trainer::issue_step() {
  const Clock::time_point start = Clock::now();
  const Batch& batch = next_batch();
  const double data_seconds = seconds_since(start);
  const double base = config_.base_learning_rate(layout_.ranks());
  lr_ = static_cast<float>(learning_rate(config_.schedule, base, begun_, max_iters_));
  fault_.set_step(begun_);
  replicas_->begin_step(batch, begun_, lr_);
  epoch_ = batch.epoch;
  ++begun_;
  seconds_.push_back({0, data_seconds, {}});
  seconds_.back().data += stage_next_batch();  // `batch` is gone
}

// What a step has come to, one record each, until `steps` are done.
void Trainer::finish_steps(std::int64_t steps) {
  while (iteration_ < steps) {
    const StepResult result = replicas_->finish_step();
    StepSeconds& seconds = *(seconds_.end() - (begun_ - iteration_));
    ++iteration_;
    losses_.push_back(result.loss);
    grad_norm_ = static_cast<float>(result.grad_norm);
    loss_scale_ = result.loss_scale;
    const Clock::time_point now = Clock::now();
    seconds.step = std::chrono::duration<double>(now - lap_).count();
    seconds.replicas = result.times;
    lap_ranks_.add(result.ranks);
    if (std::distance(seconds_.data(), &seconds) >= warm_up_) all_ranks_.add(result.ranks);
    lap_ = now;
    log_->show_progress(iteration_, max_iters_, result.loss);
  }
}

// The steps before the failed one count, and a loss of theirs that is not finite is the first
// failure. If they cannot be finished either, the failure at hand tells more.
void Trainer::finish_before_failure(std::int64_t steps) {
  // Other processes are in the step that this one cannot begin: what it said would be taken for an
  // answer there.
  if (world_.size() > 1) return;
  try {
    finish_steps(steps);
  } catch (const NonFiniteError&) {
    throw;
  } catch (const std::exception&) {
  }
}

const Batch& Trainer::next_batch() {
  if (ahead_failure_) std::rethrow_exception(ahead_failure_);
  const Batch* ahead = std::exchange(ahead_, nullptr);
  return ahead != nullptr ? *ahead : loader_->next();
}

// While the devices work; returns the seconds of waiting for the loader. What goes wrong with the
// next batch is of no concern to the present step, whose record and checkpoint come first.
double Trainer::stage_next_batch() {
  if (begun_ >= max_iters_) return 0;
  const Clock::time_point start = Clock::now();
  try {
    ahead_ = &loader_->next();
  } catch (...) {
    ahead_failure_ = std::current_exception();
    return 0;
  }
  const double waited = seconds_since(start);
  replicas_->stage_next(*ahead_);
  return waited;
}

void Trainer::validate() {
  if (validated_iteration_ == iteration_) return;
  validated_iteration_ = iteration_;
  evaluation_ = evaluator_->evaluate(config_.bn.eval_stats, config_.run.tensorboard);
  log_evaluation(evaluation_);
  log_images();
  const std::optional<double> reached = score(evaluation_);
  const bool better = reached && (!best_score_ || *reached > *best_score_);
  if (better) {
    best_score_ = reached;
    best_iter_ = iteration_;
    save("best");
  }
  write_metrics("running");
}

void Trainer::save(const std::string& name) {
  Checkpoint checkpoint = read_checkpoint(*replicas_);
  if (!world_.first()) return;
  checkpoint.state.iteration = iteration_;
  checkpoint.state.losses = losses_;
  checkpoint.state.best_score = best_score_;
  checkpoint.state.best_iter = best_iter_;
  checkpoint.state.config_hash = config_hash(config_);
  checkpoint.state.devices = layout_.placement(devices_text_);
  save_checkpoint(folder_.checkpoint(name), checkpoint);
  log_->events().write({{"type", "checkpoint"},
                        {"step", iteration_},
                        {"path", fmt::format("ckpt/{}.safetensors", name)}});
}

// The numbered one first: while `last` is rewritten there is always a whole checkpoint of this
// step.
void Trainer::save_progress() {
  save(fmt::format("iter_{}", iteration_));
  save("last");
  world_.on_first([&] { prune_checkpoints(folder_.checkpoints(), config_.run.keep); });
}

TrainSummary Trainer::finish() {
  // A run that was killed while it wrote its last checkpoint has half of it, and no step was left
  // that would have written it again.
  if (resumed_ && iteration_ == resumed_->checkpoint.state.iteration) save("last");
  validate();
  const bool differ = layout_.ranks() > 1 && !config_.bn.shares_statistics();
  if (config_.run.eval_all_stats && differ) {
    for (const EvalStats stats : {EvalStats::kDevice0, EvalStats::kMean, EvalStats::kPooled}) {
      if (stats == config_.bn.eval_stats) continue;
      other_stats_.push_back(evaluator_->evaluate(stats));
      log_evaluation(other_stats_.back());
    }
  }
  TrainSummary summary = summarize(TrainStatus::kDone);
  log_end("done", kExitDone, {{"summary", to_json(summary)}});
  log_->plain("\n" + format_summary(summary, request_.program));
  return summary;
}

TrainSummary Trainer::interrupt() {
  save_progress();
  const std::string command = fmt::format(
      "{} train {} -d {} -o {} --resume", shell_word(request_.program),
      shell_word(folder_.config().string()), devices_text_, shell_word(folder_.root.string()));
  log_->warning(fmt::format("interrupted after step {}; saved {}", iteration_,
                            folder_.checkpoint("last").string()));
  log_->plain("go on with:\n  " + command);
  log_end("interrupted", kExitInterrupted, {{"resume", command}});
  return summarize(TrainStatus::kInterrupted);
}

// Says what happened in the run's own files; the caller hears it by exception.
void Trainer::fail(const std::exception& error) {
  const std::string what = error.what();
  try {
    if (!recorded_error_.exchange(true)) log_->record_error(what);
    std::error_code ignored;
    if (std::filesystem::exists(folder_.checkpoint("last"), ignored)) {
      log_->warning(fmt::format("the last good checkpoint is {}; --resume goes on from it",
                                folder_.checkpoint("last").string()));
    }
    if (dynamic_cast<const StalledError*>(&error) != nullptr) {
      log_->events().write({{"type", "stall"}, {"step", iteration_}, {"text", what}});
    }
    log_end("failed", exit_code_of(error), {{"error", what}});
  } catch (const std::exception&) {
    // The disk may be full: the first error is the one to report.
  }
  throw;
}

TrainSummary train(const TrainRequest& request) { return Trainer(request).run(); }

}  // namespace lockstep
