#include "run/recorder.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "run/checkpoint.h"
#include "run/json_lines.h"
#include "run/summary_json.h"

namespace lockstep {

// The sinks: a new one is a file of its own, and a word here. Null: the run does not want it.
using MakeSink = std::unique_ptr<RunSink>(const RunDescription& run);
MakeSink scalars_sink, timing_sink, events_sink, tensorboard_sink;

namespace {

namespace fs = std::filesystem;

constexpr MakeSink* kSinks[] = {scalars_sink, timing_sink, events_sink, tensorboard_sink};

// Before it was resumed the run may have had another configuration; it stays beside this one.
void write_config(const RunDescription& run) {
  const RunFolder& folder = run.folder;
  const std::string text = to_toml(run.config);
  std::ostringstream earlier;
  earlier << std::ifstream(folder.config(), std::ios::binary).rdbuf();
  if (earlier.str() == text) return;
  if (fs::exists(folder.config())) {
    fs::rename(folder.config(), folder.root / fmt::format("config.until_{}.toml", run.step));
  }
  write_file_atomically(folder.config(), text);
}

void write_environment(const RunDescription& run) {
  if (fs::exists(run.folder.environment())) return;
  Json environment = run.environment;
  if (!run.algorithms.empty()) environment["convolutions"] = run.algorithms;
  write_file_atomically(run.folder.environment(), json_text(environment, 2) + "\n");
}

Json train_scalars(const StepReport& report) {
  Json line{{"mode", "train"},       {"step", report.iteration}, {"iter", report.iteration},
            {"epoch", report.epoch}, {"lr", report.lr},          {"grad_norm", report.grad_norm},
            {"loss", report.loss}};
  if (report.loss_scale) {
    line["loss_scale"] = report.loss_scale->scale;
    line["skipped"] = report.loss_scale->skipped;
  }
  return line;
}

Json val_scalars(const EvaluationRecord& record) {
  Json line{{"mode", mode_of(record.evaluation)}, {"step", record.step}, {"iter", record.step}};
  line.update(metrics_json(record.evaluation, record.classes));
  return line;
}

}  // namespace

RunRecorder::RunRecorder(const RunDescription& run, const std::vector<std::string>& warnings) {
  run.folder.create(run.config.run.rank_logs);
  if (run.folder.holds_run()) go_on(run);
  auto log = std::make_unique<RunLog>(run.folder, run.console);
  log_ = log.get();
  open(std::move(log));
  for (const auto& sink : kSinks) open(sink(run));
  if (taken_back_ > 0) {
    log_->warning(fmt::format(
        "{} lines of scalars.json after step {} are taken back: these steps are trained again",
        taken_back_, run.step));
  }
  write_config(run);
  write_environment(run);
  tell(&RunSink::begin, run);
  for (const std::string& text : warnings) warning(run.step, text);
}

void RunRecorder::open(std::unique_ptr<RunSink> sink) {
  if (sink != nullptr) sinks_.push_back(std::move(sink));
}

void RunRecorder::go_on(const RunDescription& run) {
  const RunFolder& folder = run.folder;
  remove_unfinished_files(folder.checkpoints());
  remove_unfinished_files(folder.root);
  taken_back_ = trim_json_lines(folder.scalars(), run.step);
  trim_json_lines(folder.timing(), run.step);
  trim_rank_logs(folder, run.step);
  trim_cut_line(folder.events());  // what these say of later steps has happened
  last_validated_ = last_validated_step(folder.scalars());
}

void RunRecorder::show_progress(std::int64_t done, std::int64_t total, double loss) const {
  log_->show_progress(done, total, loss);
}

void RunRecorder::step(const StepReport& report) {
  tell(&RunSink::step, report);
  tell(&RunSink::scalars, train_scalars(report));
}

void RunRecorder::ranks(std::int64_t step, std::span<const RankReport> reports) {
  tell(&RunSink::ranks, step, reports);
}

void RunRecorder::batch_norms(const BatchNormRecord& record) {
  tell(&RunSink::batch_norms, record);
}

void RunRecorder::evaluation(EvaluationRecord record) {
  record.known = knows_scores_of(record.step);
  tell(&RunSink::evaluation, record);
  if (const auto text = loss_warning(record.evaluation)) warning(record.step, *text);
  const bool curve = record.chosen || record.evaluation.averaged;
  if (curve && !record.known) tell(&RunSink::scalars, val_scalars(record));
}

void RunRecorder::checkpoint(std::int64_t step, const std::string& name) {
  tell(&RunSink::checkpoint, step, fmt::format("ckpt/{}.safetensors", name));
}

void RunRecorder::warning(std::int64_t step, const std::string& text) {
  tell(&RunSink::warning, step, text);
}

void RunRecorder::error(const std::string& text) {
  if (!has_error_.exchange(true)) log_->record_error(text);
}

void RunRecorder::end(const RunEnd& end) { tell(&RunSink::end, end); }

}  // namespace lockstep
