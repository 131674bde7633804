#pragma once
// What a run says of itself to Prometheus: a file of OpenMetrics text, as node_exporter's textfile
// collector takes it (it also is Prometheus' older text format).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

/// What is not known yet has no value, and no line.
struct RunMetrics {
  std::string run, bn_mode, devices, config_hash;
  std::uint64_t seed = 0;
  std::string state = "running";  // running, done, failed, interrupted
  int device_count = 0;
  std::int64_t steps = 0, planned_steps = 0;
  double epochs = 0;
  std::optional<double> loss, learning_rate, grad_norm;
  /// Seconds of a step, and of it where it waited and what it exchanged: means since the last line.
  std::optional<double> step_seconds, data_seconds, batch_norm_wait_seconds, exchange_seconds;
  std::optional<double> remaining_seconds, images_per_second;
  double peak_memory_bytes = 0;                                   // of the process
  std::string score = "miou";                                     // or "top1"
  std::optional<double> last_score, best_score, validation_loss;  // scores in percent
};

/// As OpenMetrics text, "# EOF" its last line. Every sample has the run's name as a label; scores
/// are ratios of 1.
std::string to_open_metrics(const RunMetrics& metrics);

/// Throws ConfigError when `path` is a folder or lies in none that can be written to: to be known
/// before anything else is begun.
void check_metrics_file(const std::filesystem::path& path);

/// The file that run.metrics_file names. Used by one thread.
class MetricsFile {
 public:
  /// Writes it for the first time. Throws ConfigError naming file and cause when that fails.
  MetricsFile(std::filesystem::path path, const RunMetrics& first);

  /// Puts a new file in place of the old one at once. Returns why that was not possible, the first
  /// time, else "".
  std::string write(const RunMetrics& metrics);

 private:
  std::filesystem::path path_;
  bool complained_ = false;
};

}  // namespace lockstep
