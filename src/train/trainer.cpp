#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "core/profiler.h"
#include "core/seconds_since.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"
#include "lockstep/optim/schedule.h"
#include "run/environment.h"
#include "run/exit_code.h"
#include "run/recorder.h"
#include "run/report_text.h"
#include "run/summary_json.h"
#include "step/replica.h"
#include "train/averaged_model.h"
#include "train/eval_batches.h"
#include "train/replica_readings.h"
#include "train/settled_data.h"
#include "train/step_meter.h"
#include "train/training.h"
#include "train/training_session.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

/// The training batches, each fetched while the devices work on the one before.
class BatchFeed {
 public:
  explicit BatchFeed(TrainLoader& loader) : loader_(loader) {}

  const Batch& next() {
    if (failure_) std::rethrow_exception(failure_);
    const Batch* ahead = std::exchange(ahead_, nullptr);
    return ahead != nullptr ? *ahead : loader_.next();
  }
  /// Returns the seconds of waiting for the loader; the batch before is gone. What goes wrong with
  /// the next one is of no concern to the present step, whose record and checkpoint come first.
  double prefetch(DataParallel& replicas) {
    const Clock::time_point start = Clock::now();
    try {
      ahead_ = &loader_.next();
    } catch (...) {
      failure_ = std::current_exception();
      return 0;
    }
    const double waited = seconds_since(start);
    replicas.stage_next(*ahead_);
    return waited;
  }

 private:
  TrainLoader& loader_;
  const Batch* ahead_ = nullptr;
  std::exception_ptr failure_;  // why there is none
};

/// While it lives, the world has a function to call (World::on_failure).
class FailureListener {
 public:
  FailureListener(World& world, std::function<std::string(const std::string&)> explain)
      : world_(world) {
    world_.on_failure(std::move(explain));
  }
  FailureListener(const FailureListener&) = delete;
  FailureListener& operator=(const FailureListener&) = delete;
  ~FailureListener() { world_.on_failure(nullptr); }

 private:
  World& world_;
};

/// The best score so far, and when.
struct Best {
  std::optional<double> score;
  std::int64_t step = 0;

  bool take(const std::optional<double>& reached, std::int64_t at) {
    if (!reached || (score && *reached <= *score)) return false;
    score = reached;
    step = at;
    return true;
  }
};

/// The last validation of this process.
struct Evaluated {
  std::int64_t step = -1;
  Evaluation chosen;               // with bn.eval_stats
  std::vector<Evaluation> others;  // by other statistics
};

// The last evaluation may have taken memory since the last step.
std::vector<RankReport> mean_ranks(const StepMeter& meter, TrainingSession& session) {
  std::vector<RankReport> reports = meter.mean_ranks();
  for (RankReport& report : reports) {
    if (session.layout.process_of(report.rank) != session.layout.process) continue;
    const Backend& backend = session.replicas->replica(report.rank).backend();
    report.memory_bytes = backend.allocated_bytes();
    report.peak_memory_bytes = backend.peak_allocated_bytes();
  }
  const bool read = session.config.run.log_bn != BatchNormLog::kOff && !reports.empty();
  if (read) add_digests(*session.replicas, reports);
  return reports;
}

/// What the folder says of a run that has ended and takes no step more: nobody times its steps
/// again.
std::optional<TrainSummary> read_ended(const TrainingSession& session) {
  const bool over = session.resume.found() && session.resume.step() == session.max_iters;
  return over && session.world.first() ? read_summary(session.folder.root) : std::nullopt;
}

/// Used by one thread, the caller's.
class Trainer {
 public:
  explicit Trainer(const TrainRequest& request);

  TrainSummary run();

 private:
  bool due(std::int64_t steps, std::int64_t every) const {
    return steps >= session_.max_iters || (every > 0 && steps % every == 0);
  }
  void train_until_stopped();
  void freeze_when_due();
  void profile_when_due();
  bool is_any(bool own);
  bool stop_requested();
  void validate_what_was_resumed();
  void begin_step();
  void issue_step();
  void finish_steps(std::int64_t steps);
  void finish_before_failure(std::int64_t steps);
  void record_step();
  void record_batch_norms();
  void validate();
  std::optional<Evaluation> evaluate_average();
  void record_evaluation(const Evaluation& evaluation, bool chosen);
  void measure_disparity();
  void evaluate_others();
  void save(const std::string& name);
  void save_average(const std::string& name);
  void save_progress();
  TrainSummary finish();
  TrainSummary interrupt();
  [[noreturn]] void fail(const std::exception& error);
  TrainSummary summarize(TrainStatus status);

  const TrainRequest request_;
  TrainingSession session_;
  const std::optional<TrainSummary> ended_;
  DataParallel& replicas_;
  AveragedModel average_;
  BatchFeed feed_;
  StepMeter meter_;
  RunRecorder recorder_;
  bool profiling_ = false;
  bool frozen_ = false;         // BatchNorm's statistics, for the rest of the training
  std::vector<Bytes> answers_;  // [process] of is_any
  Best best_;
  Evaluated validation_;
  std::vector<BatchNormDiagnostics> batch_norms_;  // of the last recorded step
  FailureListener failure_listener_;               // last: reads the members above, on its thread
};

// Of a peer that has gone this process's own threads need not live to tell: MPI may end it at once,
// and a launcher does so a second or two later.
Trainer::Trainer(const TrainRequest& request)
    : request_(request),
      session_(request_),
      ended_(read_ended(session_)),
      replicas_(*session_.replicas),
      average_(request_.config, replicas_),
      feed_(*session_.loader),
      meter_(session_.layout.devices, session_.resume.state(), session_.max_iters,
             request_.config.run.log_every),
      recorder_(session_.describe(), session_.warnings),
      best_{session_.resume.state().best_score, session_.resume.state().best_iter},
      failure_listener_(session_.world, [this](const std::string& heard) {
        std::string text = replicas_.sync_group().explain_failure(heard);
        recorder_.error(text);
        return text;
      }) {}

TrainSummary Trainer::run() {
  try {
    train_until_stopped();
    return meter_.done() >= session_.max_iters ? finish() : interrupt();
  } catch (const std::exception& error) {
    fail(error);
  }
}

// GPUs are given the next step before the present one is finished. Where something looks at what a
// step has left behind, there is none under way.
void Trainer::train_until_stopped() {
  const RunOptions& options = request_.config.run;
  validate_what_was_resumed();
  while (meter_.begun() < session_.max_iters && !stop_requested()) {
    freeze_when_due();
    profile_when_due();
    begin_step();
    const std::int64_t begun = meter_.begun();
    const bool pause = due(begun, options.log_every) || due(begun, options.val_every) ||
                       due(begun, options.checkpoint_every);
    finish_steps(pause ? begun : begun - replicas_.steps_ahead());
    if (due(begun, options.log_every)) record_step();
    // A validation may fail at an image of its own: what was trained is safe by then.
    const bool validates = due(begun, options.val_every);
    const bool saves = due(begun, options.checkpoint_every);
    if (begun == session_.max_iters || (validates && saves)) save("last");
    if (validates) validate();
    if (saves) save_progress();
  }
  finish_steps(meter_.begun());
  if (profiling_) stop_profiler();
}

// No step is half inside: the profiler sees whole ones.
void Trainer::profile_when_due() {
  const RunOptions& options = request_.config.run;
  if (!options.profile_at) return;
  const std::int64_t begun = meter_.begun(), end = *options.profile_at + options.profile_steps;
  const bool wanted = begun >= *options.profile_at && begun < end;
  if (wanted == profiling_) return;
  finish_steps(begun);
  wanted ? start_profiler() : stop_profiler();
  profiling_ = wanted;
}

// A run that goes on behind that step freezes what it has loaded.
void Trainer::freeze_when_due() {
  const std::int64_t first = request_.config.bn.freeze_step(session_.max_iters);
  if (frozen_ || meter_.begun() < first) return;
  finish_steps(meter_.begun());
  replicas_.freeze_statistics();
  frozen_ = true;
}

// Whether any process says so.
bool Trainer::is_any(bool own) {
  const auto answer = static_cast<std::byte>(own);
  replicas_.all_gather({&answer, 1}, answers_);
  return std::any_of(answers_.begin(), answers_.end(),
                     [](const Bytes& theirs) { return theirs.front() != std::byte{0}; });
}

// One process that is asked to stop stops all.
bool Trainer::stop_requested() { return is_any(request_.stop != nullptr && request_.stop->load()); }

// A run that ended in the validation of a step had saved that step before.
void Trainer::validate_what_was_resumed() {
  const std::int64_t step = meter_.begun();
  const bool inside = 0 < step && step < session_.max_iters;
  const RunOptions& options = request_.config.run;
  // It is frozen only behind the validation of the step at which it freezes.
  if (step > request_.config.bn.freeze_step(session_.max_iters)) freeze_when_due();
  if (!inside || !session_.resume.found() || !due(step, options.val_every)) return;
  if (!is_any(session_.world.first() && !recorder_.knows_scores_of(step))) return;
  validate();
  if (due(step, options.checkpoint_every)) save_progress();
}

// Of a step: the next global batch, every replica's forward and backward pass and the update.
void Trainer::begin_step() {
  const std::int64_t before = meter_.begun();
  try {
    meter_.start_clock();
    issue_step();
  } catch (const std::exception&) {
    finish_before_failure(before);
    throw;
  }
}

void Trainer::issue_step() {
  const Config& config = request_.config;
  const Clock::time_point start = Clock::now();
  const Batch& batch = feed_.next();
  const double waited = seconds_since(start);
  const std::int64_t step = meter_.begun();
  const double base = config.base_learning_rate(session_.layout.ranks());
  const auto rate =
      static_cast<float>(learning_rate(config.schedule, base, step, session_.max_iters));
  session_.fault.set_step(step);
  replicas_.begin_step(batch, step, rate);
  meter_.begin(static_cast<double>(rate), batch.epoch, waited);
  if (meter_.begun() < session_.max_iters) meter_.add_data_seconds(feed_.prefetch(replicas_));
}

// What a step has come to, one record each, until `steps` are done.
void Trainer::finish_steps(std::int64_t steps) {
  while (meter_.done() < steps) {
    const StepResult result = replicas_.finish_step();
    meter_.finish(result);
    recorder_.show_progress(meter_.done(), session_.max_iters, result.loss);
  }
}

// The steps before the failed one count, and a loss of theirs that is not finite is the first
// failure. If they cannot be finished either, the failure at hand tells more.
void Trainer::finish_before_failure(std::int64_t steps) {
  // Other processes are in the step that this one cannot begin: what it said would be taken for an
  // answer there.
  if (session_.world.size() > 1) return;
  try {
    finish_steps(steps);
  } catch (const NonFiniteError&) {
    throw;
  } catch (const std::exception&) {
  }
}

void Trainer::record_step() {
  recorder_.step(meter_.report());
  std::vector<RankReport> ranks = meter_.report_ranks();
  if (session_.logs_replicas()) add_digests(replicas_, ranks);
  recorder_.ranks(meter_.done(), ranks);
  if (request_.config.run.log_bn != BatchNormLog::kOff && !frozen_) record_batch_norms();
}

void Trainer::record_batch_norms() {
  const BatchNormReading reading = read_batch_norms(replicas_);
  batch_norms_ = diagnose(reading, meter_.done());
  BatchNormRecord record{.step = meter_.done(), .layers = batch_norms_};
  if (session_.logs_replicas()) {
    const SyncGroup& group = replicas_.sync_group();
    record.reading = &reading;
    record.channels = request_.config.run.log_bn == BatchNormLog::kFull;
    record.forward = group.callbacks(Direction::kForward);
    record.backward = group.callbacks(Direction::kBackward);
    record.barrier = group.callbacks(Direction::kOther);
  }
  recorder_.batch_norms(record);
}

void Trainer::validate() {
  if (validation_.step == meter_.done()) return;
  validation_.step = meter_.done();
  session_.fault.strike_evaluation(meter_.done());
  const Config& config = request_.config;
  const std::optional<Evaluation> averaged = evaluate_average();
  Evaluation& evaluation = validation_.chosen;
  evaluation = session_.evaluator->evaluate(config.bn.eval_stats, config.run.tensorboard);
  const bool better = best_.take(score(averaged.value_or(evaluation)), meter_.done());
  if (averaged) record_evaluation(*averaged, false);
  record_evaluation(evaluation, true);
  measure_disparity();
  if (better) save("best");
}

// What training would see of the validation split.
void Trainer::measure_disparity() {
  validation_.others.clear();
  if (!measures_disparity(request_.config, frozen_)) return;
  validation_.others.push_back(session_.evaluator->evaluate(EvalStats::kBatch));
  record_evaluation(validation_.others.back(), false);
}

// None without ema.decay. Where there is one the best checkpoint is the one whose average is.
std::optional<Evaluation> Trainer::evaluate_average() {
  if (!average_.any()) return std::nullopt;
  Evaluation evaluation;
  average_.with(meter_.done(), [&] {
    evaluation = session_.evaluator->evaluate(request_.config.bn.eval_stats);
    evaluation.averaged = true;
  });
  return evaluation;
}

void Trainer::record_evaluation(const Evaluation& evaluation, bool chosen) {
  EvaluationRecord record{.step = meter_.done(),
                          .evaluation = evaluation,
                          .classes = session_.classes,
                          .chosen = chosen,
                          .best_score = best_.score};
  if (evaluation.together > 0 && !chosen && !evaluation.averaged) {
    record.disparity = compare_statistics(validation_.chosen, evaluation);
  }
  const bool known = recorder_.knows_scores_of(record.step);
  const std::vector<Color> colors = class_colors(request_.config.data);
  for (const ValidationExample& example : session_.evaluator->examples()) {
    if (!chosen || known) break;
    record.images.push_back({std::filesystem::path(example.name).filename().string(),
                             side_by_side({example.image, paint(example.truth, colors),
                                           paint(example.prediction, colors)})});
  }
  recorder_.evaluation(std::move(record));
}

void Trainer::save(const std::string& name) {
  Checkpoint checkpoint = read_checkpoint(replicas_);
  if (name == "last" || name == "best") save_average(name);
  if (!session_.world.first()) return;
  checkpoint.state.iteration = meter_.done();
  checkpoint.state.losses = meter_.losses();
  checkpoint.state.best_score = best_.score;
  checkpoint.state.best_iter = best_.step;
  checkpoint.state.config_hash = config_hash(request_.config);
  checkpoint.state.data_hash = session_.data->hash();
  checkpoint.state.devices = session_.layout.placement(session_.devices_text);
  save_checkpoint(session_.folder.checkpoint(name), std::move(checkpoint));
  recorder_.checkpoint(meter_.done(), name);
}

// The training state has it, too: this file is for those who want weights. It goes before the pair,
// whose step it then is of.
void Trainer::save_average(const std::string& name) {
  if (!average_.any()) return;
  TensorMap average = average_.state(meter_.done());
  if (!session_.world.first()) return;
  save_weights(session_.folder.checkpoint(name + "_ema"), std::move(average), meter_.done());
}

// The numbered one first: while `last` is rewritten there is always a whole checkpoint of this
// step.
void Trainer::save_progress() {
  save(fmt::format("iter_{}", meter_.done()));
  save("last");
  session_.world.on_first(
      [this] { prune_checkpoints(session_.folder.checkpoints(), request_.config.run.keep); });
}

TrainSummary Trainer::finish() {
  // A run that was killed while it wrote its last checkpoint has half of it, and one that was
  // killed in its last evaluation does not know its best: no step was left that would have written
  // it again.
  const bool all_done = session_.resume.found() && meter_.done() == session_.resume.step();
  if (all_done) save("last");
  validate();
  if (all_done) save_progress();
  evaluate_others();
  TrainSummary summary = summarize(TrainStatus::kDone);
  recorder_.end({.step = meter_.done(),
                 .status = "done",
                 .exit_code = kExitDone,
                 .details = {{"summary", to_json(summary)}},
                 .text = "\n" + format_summary(summary, request_.program)});
  return summary;
}

void Trainer::evaluate_others() {
  for (const EvalStats stats :
       evaluated_at_end(request_.config, session_.layout.ranks(), frozen_)) {
    validation_.others.push_back(session_.evaluator->evaluate(stats));
    record_evaluation(validation_.others.back(), false);
  }
}

TrainSummary Trainer::interrupt() {
  save_progress();
  const RunFolder& folder = session_.folder;
  const std::string command =
      fmt::format("{} train {} -d {} -o {} --resume", shell_word(request_.program),
                  shell_word(folder.config().string()), session_.devices_text,
                  shell_word(folder.root.string()));
  const int processes = session_.layout.processes();
  const std::string launched =
      processes > 1
          ? fmt::format(", in each of {} processes (mpirun -np {}),", processes, processes)
          : "";
  recorder_.end({.step = meter_.done(),
                 .status = "interrupted",
                 .exit_code = kExitInterrupted,
                 .details = {{"resume", command}},
                 .warning = fmt::format("interrupted after step {}; saved {}", meter_.done(),
                                        folder.checkpoint("last").string()),
                 .text = fmt::format("go on{} with:\n  {}", launched, command)});
  return summarize(TrainStatus::kInterrupted);
}

// Says what happened in the run's own files; the caller hears it by exception.
void Trainer::fail(const std::exception& error) {
  RunEnd end{.step = meter_.done(),
             .status = "failed",
             .exit_code = exit_code_of(error),
             .details = {{"error", error.what()}},
             .stalled = dynamic_cast<const StalledError*>(&error) != nullptr};
  try {
    recorder_.error(error.what());
    const std::filesystem::path last = session_.folder.checkpoint("last");
    std::error_code ignored;
    if (std::filesystem::exists(last, ignored)) {
      end.warning =
          fmt::format("the last good checkpoint is {}; --resume goes on from it", last.string());
    }
    recorder_.end(end);
  } catch (const std::exception&) {
    // The disk may be full: the first error is the one to report.
  }
  throw;
}

TrainSummary Trainer::summarize(TrainStatus status) {
  const Config& config = request_.config;
  const RankLayout& layout = session_.layout;
  TrainSummary summary{.status = status,
                       .run = session_.folder.root,
                       .config_hash = config_hash(config),
                       .data_hash = session_.data->hash(),
                       .bn_mode = to_string(config.bn.mode),
                       .cell = request_.cell,
                       .seed = config.run.seed,
                       .devices = session_.devices_text,
                       .placement = layout.placement(session_.devices_text),
                       .device_count = layout.ranks(),
                       .global_batch = config.global_batch(layout.ranks()),
                       .iterations = meter_.done(),
                       .max_iters = session_.max_iters,
                       .parameters = replicas_.parameter_count(),
                       .classes = session_.classes,
                       .evaluation = validation_.chosen,
                       .other_stats = validation_.others,
                       .best_score = best_.score,
                       .best_iter = best_.step,
                       .train_loss = meter_.tail_loss(),
                       .times = meter_.mean_times(),
                       .peak_memory_mb = peak_memory_mb(),
                       .ranks = mean_ranks(meter_, session_),
                       .batch_norms = batch_norms_};
  if (config.bn.synchronizes()) summary.sync_layers = config.bn.sync_layers;
  const MeanTimes& times = summary.times;
  if (times.step > 0) {
    summary.images_per_second = static_cast<double>(summary.global_batch) / times.step;
    summary.waiting_share = times.batch_norm_wait / times.step;
  }
  if (ended_ && ended_->placement == summary.placement) {
    summary.times = ended_->times;
    summary.images_per_second = ended_->images_per_second;
    summary.waiting_share = ended_->waiting_share;
    summary.ranks = ended_->ranks;
    summary.batch_norms = ended_->batch_norms;
  }
  summary.shares_cores =
      session_.devices.front().kind == DeviceKind::kCpu && layout.own_ranks() > host_threads();
  return summary;
}

/// The folder of the run that goes on, where one does.
std::filesystem::path begun_run(const TrainRequest& request) {
  if (!request.output.empty() || !request.resume) return request.output;
  return resumes_newest(*request.resume) ? newest_run_folder(request.config).root
                                         : run_of(*request.resume);
}

}  // namespace

TrainSummary train(const TrainRequest& request) {
  TrainRequest settled = request;
  Config& config = settled.config;
  const std::string said = settle_by_first(config, request.world,
                                           [&] { return settle_data(config, begun_run(request)); });
  if (!said.empty()) settled.notes.push_back(said);
  return Trainer(settled).run();
}

}  // namespace lockstep
