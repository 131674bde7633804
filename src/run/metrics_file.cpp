#include "run/metrics_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "run/environment.h"
#include "run/run_sink.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string escaped(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// The lines of one file, family by family.
class Writer {
 public:
  explicit Writer(const std::string& run) : label_(fmt::format("run=\"{}\"", escaped(run))) {}

  /// A family of one sample. `unit`: what its name ends in, or "".
  void gauge(const std::string& name, const char* unit, const char* help,
             const std::optional<double>& value) {
    if (!value) return;
    begin(name, "gauge", unit, help);
    sample(name, "", *value);
  }
  void counter(const std::string& name, const char* help, std::int64_t value) {
    begin(name, "counter", "", help);
    sample(name + "_total", "", static_cast<double>(value));
  }
  void begin(const std::string& name, const char* type, const std::string& unit, const char* help) {
    text_ += fmt::format("# TYPE {} {}\n", name, type);
    if (!unit.empty()) text_ += fmt::format("# UNIT {} {}\n", name, unit);
    text_ += fmt::format("# HELP {} {}\n", name, help);
  }
  /// `labels`: more than the run's, each with a comma before it.
  void sample(const std::string& name, const std::string& labels, double value) {
    text_ += fmt::format("{}{{{}{}}} {}\n", name, label_, labels, number(value));
  }
  std::string text() const { return text_ + "# EOF\n"; }

 private:
  std::string label_, text_;
};

std::string label(const char* name, const std::string& value) {
  return fmt::format(",{}=\"{}\"", name, escaped(value));
}

// node_exporter knows gauges and counters, but not OpenMetrics' types info and stateset.
void write_state(const RunMetrics& metrics, Writer& out) {
  out.begin("lockstep_run_info", "gauge", "", "What the run is; the value is 1.");
  out.sample("lockstep_run_info",
             label("bn_mode", metrics.bn_mode) + label("devices", metrics.devices) +
                 label("seed", std::to_string(metrics.seed)) +
                 label("config_hash", metrics.config_hash) + label("version", LOCKSTEP_VERSION),
             1);
  out.begin("lockstep_run_state", "gauge", "", "1 for the state that the run is in, else 0.");
  for (const char* state : {"running", "done", "failed", "interrupted"})
    out.sample("lockstep_run_state", label("state", state), metrics.state == state ? 1 : 0);
}

void write_step(const RunMetrics& metrics, Writer& out) {
  out.gauge("lockstep_devices", "", "Devices that train.", metrics.device_count);
  out.counter("lockstep_steps", "Training steps done.", metrics.steps);
  out.gauge("lockstep_planned_steps", "", "Steps of the whole run.",
            static_cast<double>(metrics.planned_steps));
  out.gauge("lockstep_epochs", "", "Epochs done, with the part of the present one.",
            metrics.epochs);
  out.gauge("lockstep_loss", "", "Training loss, mean since the last log line.", metrics.loss);
  out.gauge("lockstep_learning_rate", "", "Of the last step.", metrics.learning_rate);
  out.gauge("lockstep_gradient_norm", "", "Of the last step, over all parameters.",
            metrics.grad_norm);
}

void write_times(const RunMetrics& metrics, Writer& out) {
  out.gauge("lockstep_step_seconds", "seconds", "Of a step, mean since the last log line.",
            metrics.step_seconds);
  out.gauge("lockstep_data_wait_seconds", "seconds", "Waiting for the loader in a step.",
            metrics.data_seconds);
  out.gauge("lockstep_batch_norm_wait_seconds", "seconds",
            "Waiting for other replicas in BatchNorm in a step, mean over devices.",
            metrics.batch_norm_wait_seconds);
  out.gauge("lockstep_gradient_exchange_seconds", "seconds",
            "Gradients, update and write-back in a step, mean over devices.",
            metrics.exchange_seconds);
  out.gauge("lockstep_remaining_seconds", "seconds", "To the end of the run.",
            metrics.remaining_seconds);
  out.gauge("lockstep_images_per_second", "", "Training images, mean since the last log line.",
            metrics.images_per_second);
  out.gauge("lockstep_peak_memory_bytes", "bytes", "Most memory that the process has held.",
            metrics.peak_memory_bytes);
}

std::optional<double> ratio(const std::optional<double>& percent) {
  return percent ? std::optional(*percent / 100) : std::nullopt;
}

void write_scores(const RunMetrics& metrics, Writer& out) {
  const std::string name = metrics.score + "_ratio";
  out.gauge("lockstep_validation_" + name, "ratio", "Of the last evaluation.",
            ratio(metrics.last_score));
  out.gauge("lockstep_best_validation_" + name, "ratio", "Of the best evaluation so far.",
            ratio(metrics.best_score));
  out.gauge("lockstep_validation_loss", "", "Of the last evaluation.", metrics.validation_loss);
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw ConfigError(concat("run.metrics_file: expected a file that can be written, got ",
                           path.string(), ": ", why));
}

}  // namespace

std::string to_open_metrics(const RunMetrics& metrics) {
  Writer out(metrics.run);
  write_state(metrics, out);
  write_step(metrics, out);
  write_times(metrics, out);
  write_scores(metrics, out);
  return out.text();
}

void check_metrics_file(const fs::path& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  if (fs::is_directory(path)) refuse(path, "it is a folder");
  if (!fs::is_directory(folder))
    refuse(path, concat("there is no folder ", folder.string(), "; make it first"));
  if (access(folder.c_str(), W_OK) != 0) refuse(path, "its folder cannot be written to");
}

MetricsFile::MetricsFile(fs::path path, const RunMetrics& first) : path_(std::move(path)) {
  const std::string complaint = write(first);
  if (!complaint.empty()) refuse(path_, complaint);
}

std::string MetricsFile::write(const RunMetrics& metrics) {
  try {
    write_file_atomically(path_, to_open_metrics(metrics));
  } catch (const Error& error) {
    return std::exchange(complained_, true) ? "" : error.what();
  }
  return "";
}

namespace {

/// What cannot be written costs no training: it is told of once.
class OpenMetricsSink : public RunSink {
 public:
  OpenMetricsSink(const RunDescription& run, WarnOf warn)
      : metrics_(first_metrics(run)),
        file_(run.config.run.metrics_file, metrics_),
        images_per_step_(static_cast<double>(run.config.global_batch(run.device_count))),
        steps_per_epoch_(static_cast<double>(run.steps_per_epoch)),
        warn_(std::move(warn)) {}

  void step(const StepReport& report) override {
    metrics_.loss = report.loss;
    metrics_.learning_rate = report.lr;
    metrics_.grad_norm = report.grad_norm;
    metrics_.step_seconds = report.time;
    metrics_.data_seconds = report.data_time;
    metrics_.batch_norm_wait_seconds = report.batch_norm_wait;
    metrics_.exchange_seconds = report.exchange;
    metrics_.remaining_seconds = report.eta;
    if (report.time > 0) metrics_.images_per_second = images_per_step_ / report.time;
    write(report.iteration);
  }
  void evaluation(const EvaluationRecord& record) override {
    if (!record.chosen) return;
    metrics_.last_score = score(record.evaluation);
    metrics_.best_score = record.best_score;
    metrics_.validation_loss = record.evaluation.loss;
    write(record.step);
  }
  void end(const RunEnd& end) override {
    metrics_.state = end.status;
    write(end.step);
  }

 private:
  static RunMetrics first_metrics(const RunDescription& run) {
    RunMetrics metrics;
    metrics.run = run.config.run.name;
    metrics.bn_mode = to_string(run.config.bn.mode);
    metrics.devices = run.devices;
    metrics.config_hash = config_hash(run.config);
    metrics.seed = run.config.run.seed;
    metrics.device_count = run.device_count;
    metrics.steps = run.step;
    metrics.planned_steps = run.max_iters;
    const bool segments = run.config.architecture().task == Task::kSegmentation;
    metrics.score = segments ? "miou" : "top1";
    metrics.best_score = run.best_score;
    return metrics;
  }

  void write(std::int64_t step) {
    metrics_.steps = step;
    metrics_.epochs = static_cast<double>(step) / steps_per_epoch_;
    metrics_.peak_memory_bytes = peak_memory_mb() * 1048576;
    const std::string complaint = file_.write(metrics_);
    if (complaint.empty()) return;
    warn_(step, "run.metrics_file: " + complaint + "; the training goes on without it");
  }

  RunMetrics metrics_;
  MetricsFile file_;
  double images_per_step_, steps_per_epoch_;
  WarnOf warn_;
};

}  // namespace

std::unique_ptr<RunSink> open_metrics_sink(const RunDescription& run, const WarnOf& warn) {
  if (run.config.run.metrics_file.empty() || !run.first_process) return nullptr;
  return std::make_unique<OpenMetricsSink>(run, warn);
}

}  // namespace lockstep
