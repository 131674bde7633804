#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "lockstep/io/image.h"
#include "run/batch_norm_diagnostics.h"
#include "run/choices.h"
#include "run/environment.h"
#include "run/report_text.h"
#include "run/summary_json.h"
#include "step/replica.h"
#include "train/trainer_impl.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSchema = 1;

std::string describe_mode(const Config& config, std::size_t devices) {
  const BatchNormConfig& bn = config.bn;
  if (bn.mode == BatchNormMode::kLocal)
    return "local: every device normalises its own part of the batch";
  if (bn.mode == BatchNormMode::kGhost) {
    return fmt::format("ghost: every device's part is cut into {} slices", bn.virtual_devices);
  }
  const std::size_t group = bn.sync_group > 0 ? static_cast<std::size_t>(bn.sync_group) : devices;
  return fmt::format("sync: groups of {} of {} devices normalise their common batch", group,
                     devices);
}

std::string describe_processes(const RankLayout& layout) {
  std::string text;
  for (int process = 0; process < layout.processes(); ++process) {
    text += (process == 0 ? "" : ", ") + layout.describe(process);
  }
  return text;
}

// TF32 is about fp32 convolutions only.
bool rounds_to_tf32(const RunOptions& run) { return run.tf32 && run.precision == DType::kFloat32; }

}  // namespace

void Trainer::log_start() {
  const int count = layout_.ranks();
  const std::int64_t batch = config_.global_batch(count);
  log_->info(fmt::format("lockstep {}: {}, seed {}, configuration {}", LOCKSTEP_VERSION,
                         config_.run.name, config_.run.seed, config_hash(config_)));
  const TransportRanks ranks{devices_, layout_.first_rank(), count};
  log_->info(fmt::format("devices: {} ({}), transport {}, precision {}{}", devices_text_,
                         request_.devices.empty() ? "the default; choose with -d" : "as asked",
                         resolve_transport(config_.run.transport, ranks),
                         to_string(config_.run.precision),
                         rounds_to_tf32(config_.run) ? " with TF32 convolutions" : ""));
  if (layout_.processes() > 1) log_->info("processes: " + describe_processes(layout_));
  const GradientExchangeChoice& exchange = replicas_->gradient_exchange();
  log_->info(fmt::format("gradient exchange: {} ({})", exchange.kind, exchange.reason));
  log_->info(fmt::format("model: {}, {} classes, {} parameters", config_.architecture().description,
                         config_.model.num_classes, replicas_->parameter_count()));
  if (const auto choices = summarize_choices()) log_->info("convolutions: " + *choices);
  log_->info(fmt::format(
      "batch: {} images of {}x{} = {} on {} devices; {} steps per epoch, {} in all", batch,
      loader_->size().height, loader_->size().width, fmt::join(chunk_sizes(batch, count), " + "),
      count, loader_->batches_per_epoch(), max_iters_));
  log_->info("batch_norm: " + describe_mode(config_, static_cast<std::size_t>(count)) +
             fmt::format("; evaluation uses {}", to_string(config_.bn.eval_stats)));
  log_->info(fmt::format("logs: {}", folder_.root.string()));
  log_->events().write({{"type", resumed_ ? "resume" : "header"},
                        {"schema", kSchema},
                        {"step", iteration_},
                        {"run", config_.run.name},
                        {"config_hash", config_hash(config_)},
                        {"devices", devices_text_},
                        {"bn_mode", to_string(config_.bn.mode)},
                        {"gradient_exchange", exchange.kind},
                        {"seed", config_.run.seed},
                        {"precision", to_string(config_.run.precision)},
                        {"tf32", rounds_to_tf32(config_.run)},
                        {"max_iters", max_iters_},
                        {"environment", describe_environment(devices_)}});
  log_->begin_session(hyper_parameters(config_, devices_text_));
  if (resumed_)
    log_->info(fmt::format("resumed {} at step {}", resumed_->path.string(), iteration_));
  for (const std::string& text : initial_weights_) log_->info(text);
  if (fault_.active()) warnings_.push_back("faults are injected (LOCKSTEP_FAULT)");
  for (const std::string& text : warnings_) {
    log_->warning(text);
    log_->events().write({{"type", "warning"}, {"step", iteration_}, {"text", text}});
  }
}

void Trainer::log_step() {
  StepReport report{.iteration = iteration_, .max_iters = max_iters_, .epoch = epoch_};
  const auto steps = iteration_ - logged_iteration_;
  report.loss =
      std::accumulate(losses_.end() - steps, losses_.end(), 0.0) / static_cast<double>(steps);
  logged_iteration_ = iteration_;
  const auto timed = std::min<std::int64_t>(steps, static_cast<std::int64_t>(seconds_.size()));
  const auto share = 1.0 / static_cast<double>(timed);
  for (auto step = seconds_.end() - timed; step != seconds_.end(); ++step) {
    report.time += step->step * share;
    report.data_time += step->data * share;
    report.compute += step->replicas.compute * share;
    report.batch_norm_wait += step->replicas.batch_norm_wait * share;
    report.exchange += step->replicas.gradient_exchange * share;
  }
  report.lr = static_cast<double>(lr_);
  report.grad_norm = static_cast<double>(grad_norm_);
  report.loss_scale = loss_scale_;
  report.eta = report.time * static_cast<double>(max_iters_ - iteration_);
  report.memory = peak_memory_mb();
  log_->info(format_step(report));
  Json scalars{{"mode", "train"},    {"step", iteration_}, {"iter", iteration_},
               {"epoch", epoch_},    {"lr", report.lr},    {"grad_norm", report.grad_norm},
               {"loss", report.loss}};
  if (loss_scale_) {
    scalars["loss_scale"] = loss_scale_->scale;
    scalars["skipped"] = loss_scale_->skipped;
  }
  log_->write_scalars(scalars);
  log_->timing().write({{"mode", "train"},
                        {"step", iteration_},
                        {"time", report.time},
                        {"data_time", report.data_time},
                        {"compute", report.compute},
                        {"bn_wait", report.batch_norm_wait},
                        {"exchange", report.exchange},
                        {"memory", report.memory},
                        {"eta", report.eta}});
  log_ranks();
  log_batch_norms();
  metrics_.loss = report.loss;
  metrics_.learning_rate = report.lr;
  metrics_.grad_norm = report.grad_norm;
  metrics_.step_seconds = report.time;
  metrics_.data_seconds = report.data_time;
  metrics_.batch_norm_wait_seconds = report.batch_norm_wait;
  metrics_.exchange_seconds = report.exchange;
  metrics_.remaining_seconds = report.eta;
  const auto batch = static_cast<double>(config_.global_batch(layout_.ranks()));
  if (report.time > 0) metrics_.images_per_second = batch / report.time;
  write_metrics("running");
}

// What cannot be written costs no training: it is told of once.
void Trainer::write_metrics(const std::string& state) {
  if (!metrics_file_) return;
  metrics_.state = state;
  metrics_.steps = iteration_;
  metrics_.epochs =
      static_cast<double>(iteration_) / static_cast<double>(loader_->batches_per_epoch());
  metrics_.peak_memory_bytes = peak_memory_mb() * 1048576;
  metrics_.last_score = score(evaluation_);
  metrics_.best_score = best_score_;
  metrics_.validation_loss = evaluation_.loss;
  const std::string complaint = metrics_file_->write(metrics_);
  if (complaint.empty()) return;
  const std::string text = "run.metrics_file: " + complaint + "; the training goes on without it";
  log_->warning(text);
  log_->events().write({{"type", "warning"}, {"step", iteration_}, {"text", text}});
}

void Trainer::log_ranks() {
  std::vector<RankReport> reports = lap_ranks_.reports();
  lap_ranks_.clear();
  if (logs_replicas()) add_digests(*replicas_, reports);
  for (const RankReport& report : reports) {
    Json line{{"type", "rank"}, {"step", iteration_}};
    line.update(to_json(report));
    log_->rank_event(report.rank, line);
  }
}

void Trainer::log_batch_norms() {
  if (config_.run.log_bn == BatchNormLog::kOff) return;
  const BatchNormReading reading = read_batch_norms(*replicas_);
  lenses_ = lenses_of(reading, iteration_);
  for (const BatchNormLens& lens : lenses_) log_->events().write(to_json(lens));
  if (!logs_replicas()) return;
  log_parts(reading);
  log_callbacks();
}

void Trainer::log_parts(const BatchNormReading& reading) {
  for (const BatchNormCall& call : reading.calls) {
    for (std::size_t rank = 0; rank < call.parts.size(); ++rank) {
      for (std::size_t slice = 0; slice < call.parts[rank].size(); ++slice) {
        Json line{{"type", "bn_part"},
                  {"step", iteration_},
                  {"layer", call.layer},
                  {"rank", rank},
                  {"slice", slice}};
        line.update(to_json(call.parts[rank][slice], config_.run.log_bn == BatchNormLog::kFull));
        log_->rank_event(static_cast<int>(rank), line);
      }
    }
  }
}

void Trainer::log_callbacks() {
  const SyncGroup& group = replicas_->sync_group();
  log_->events().write({{"type", "callbacks"},
                        {"step", iteration_},
                        {"forward", group.callbacks(Direction::kForward)},
                        {"backward", group.callbacks(Direction::kBackward)},
                        {"barrier", group.callbacks(Direction::kOther)}});
}

void Trainer::log_evaluation(const Evaluation& evaluation) {
  log_->info(format_validation(evaluation));
  Json event{{"type", "eval"}, {"step", iteration_}};
  event.update(to_json(evaluation, classes_));
  log_->events().write(event);
  if (const auto text = loss_warning(evaluation)) {
    log_->warning(*text);
    log_->events().write({{"type", "warning"}, {"step", iteration_}, {"text", *text}});
  }
  if (evaluation.eval_stats != config_.bn.eval_stats || recorded_validation_ == iteration_) return;
  Json scalars{{"mode", "val"}, {"step", iteration_}, {"iter", iteration_}};
  scalars.update(metrics_json(evaluation, classes_));
  log_->write_scalars(scalars);
  log_->timing().write({{"mode", "val"},
                        {"step", iteration_},
                        {"time", evaluation.seconds},
                        {"images", evaluation.images}});
}

void Trainer::log_end(const std::string& status, int exit_code, Json details) {
  Json event{{"type", "end"}, {"step", iteration_}, {"status", status}, {"exit_code", exit_code}};
  event.update(details);
  write_metrics(status);  // first: it may lie on a disk that is not full
  log_->events().write(event);
  log_->end_session(status);
}

void Trainer::log_images() {
  if (recorded_validation_ == iteration_) return;
  const std::vector<Color> colors = class_colors(config_.data);
  for (const ValidationExample& example : evaluator_->examples()) {
    log_->write_image("val/" + std::filesystem::path(example.name).filename().string(), iteration_,
                      side_by_side({example.image, paint(example.truth, colors),
                                    paint(example.prediction, colors)}));
  }
}

MeanTimes Trainer::mean_times() const {
  const auto skipped = std::min(static_cast<std::size_t>(warm_up_), seconds_.size() / 4);
  const auto count = static_cast<double>(seconds_.size() - skipped);
  MeanTimes means;
  if (seconds_.empty()) return means;
  std::vector<double> steps;
  for (std::size_t i = skipped; i < seconds_.size(); ++i) {
    const StepSeconds& step = seconds_[i];
    means.step += step.step / count;
    means.data += step.data / count;
    means.compute += step.replicas.compute / count;
    means.batch_norm_wait += step.replicas.batch_norm_wait / count;
    means.gradient_exchange += step.replicas.gradient_exchange / count;
    steps.push_back(step.step);
  }
  std::nth_element(steps.begin(), steps.begin() + steps.size() / 2, steps.end());
  means.median_step = steps[steps.size() / 2];
  return means;
}

double Trainer::tail_loss() const {
  if (losses_.empty()) return 0;
  const auto count =
      std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(losses_.size() / 10), 1, 100);
  return std::accumulate(losses_.end() - count, losses_.end(), 0.0) / static_cast<double>(count);
}

// The last evaluation may have taken memory since the last step.
std::vector<RankReport> Trainer::report_ranks() {
  std::vector<RankReport> reports = all_ranks_.reports();
  for (RankReport& report : reports) {
    if (layout_.process_of(report.rank) != layout_.process) continue;
    const Backend& backend = replicas_->replica(report.rank).backend();
    report.memory_bytes = backend.allocated_bytes();
    report.peak_memory_bytes = backend.peak_allocated_bytes();
  }
  const bool read = config_.run.log_bn != BatchNormLog::kOff && !reports.empty();
  if (read) add_digests(*replicas_, reports);
  return reports;
}

TrainSummary Trainer::summarize(TrainStatus status) {
  TrainSummary summary;
  summary.status = status;
  summary.run = folder_.root;
  summary.config_hash = config_hash(config_);
  summary.bn_mode = to_string(config_.bn.mode);
  summary.seed = config_.run.seed;
  summary.devices = devices_text_;
  summary.placement = layout_.placement(devices_text_);
  summary.device_count = layout_.ranks();
  summary.global_batch = config_.global_batch(summary.device_count);
  summary.iterations = iteration_;
  summary.max_iters = max_iters_;
  summary.parameters = replicas_->parameter_count();
  summary.classes = classes_;
  summary.evaluation = evaluation_;
  summary.other_stats = other_stats_;
  summary.best_score = best_score_;
  summary.best_iter = best_iter_;
  summary.train_loss = tail_loss();
  summary.times = mean_times();
  if (summary.times.step > 0) {
    summary.images_per_second = static_cast<double>(summary.global_batch) / summary.times.step;
    summary.waiting_share = summary.times.batch_norm_wait / summary.times.step;
  }
  summary.shares_cores =
      devices_.front().kind == DeviceKind::kCpu && layout_.own_ranks() > host_threads();
  summary.peak_memory_mb = peak_memory_mb();
  summary.ranks = report_ranks();
  summary.batch_norms = lenses_;
  return summary;
}

}  // namespace lockstep
