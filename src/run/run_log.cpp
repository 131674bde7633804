#include "run/run_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "io/written_file.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

/// INFO, WARNING, ERROR as mmengine writes them.
class UpperLevel : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& destination) override {
    std::string name(message.level == spdlog::level::warn
                         ? "WARNING"
                         : spdlog::level::to_string_view(message.level).data());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    destination.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<UpperLevel>();
  }
};

/// spdlog's own keeps lines in memory, and on some systems does not say why they cannot be written.
class LogFile final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogFile(const std::filesystem::path& path) : file_(path, WrittenFile::Mode::kAppend) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_.write({line.data(), line.size()});
  }
  void flush_() override {}

  WrittenFile file_;
};

std::unique_ptr<spdlog::formatter> prefixed() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<UpperLevel>('*').set_pattern("%m/%d %H:%M:%S - %n - %^%*%$ - %v");
  return formatter;
}

std::unique_ptr<spdlog::formatter> unprefixed() {
  return std::make_unique<spdlog::pattern_formatter>("%v");
}

spdlog::sink_ptr console_sink(Console console) {
  // By the descriptor: a stream that stands for it may have none (app/terminal.h).
  const bool terminal = isatty(console == Console::kStdout ? STDOUT_FILENO : STDERR_FILENO) == 1 &&
                        spdlog::details::os::is_color_terminal();
  const auto color = terminal && std::getenv("NO_COLOR") == nullptr ? spdlog::color_mode::always
                                                                    : spdlog::color_mode::never;
  if (console == Console::kStdout)
    return std::make_shared<spdlog::sinks::stdout_color_sink_mt>(color);
  return std::make_shared<spdlog::sinks::stderr_color_sink_mt>(color);
}

std::shared_ptr<spdlog::logger> make_logger(const std::vector<spdlog::sink_ptr>& sinks) {
  auto logger = std::make_shared<spdlog::logger>("lockstep", sinks.begin(), sinks.end());
  logger->flush_on(spdlog::level::info);
  // Called for what a sink throws, where it is caught. A run whose log cannot be written ends as
  // one whose other files cannot.
  logger->set_error_handler([](const std::string&) { throw; });
  return logger;
}

// Sinks carry their formatter, so every logger has its own; both append to the same file.
std::vector<spdlog::sink_ptr> sinks_for(const RunFolder& folder, Console console,
                                        std::unique_ptr<spdlog::formatter> (*formatter)()) {
  std::vector<spdlog::sink_ptr> sinks{std::make_shared<LogFile>(folder.log())};
  if (console != Console::kQuiet) {
    sinks.push_back(console_sink(console));
    if (console == Console::kWarnings) sinks.back()->set_level(spdlog::level::warn);
  }
  for (const spdlog::sink_ptr& sink : sinks) sink->set_formatter(formatter());
  return sinks;
}

std::string convolutions_of(const RunDescription& run) {
  if (run.tf32) return " with TF32 convolutions (run.tf32 = false: exact fp32)";
  if (run.threads.empty() || run.config.run.precision != DType::kBFloat16) return "";
  if (run.bf16_products.empty()) return " of activations in memory, arithmetic in fp32";
  return fmt::format(" with bf16 convolutions, by {}", run.bf16_products);
}

}  // namespace

RunLog::RunLog(const RunFolder& folder, Console console)
    : logger_(make_logger(sinks_for(folder, console, prefixed))),
      file_(make_logger(sinks_for(folder, Console::kQuiet, prefixed))),
      bare_(make_logger(sinks_for(folder, console, unprefixed))),
      quiet_(console == Console::kQuiet || console == Console::kWarnings) {}

void RunLog::begin(const RunDescription& run) {
  const Config& config = run.config;
  info(fmt::format("lockstep {}: {}, seed {}, configuration {}", LOCKSTEP_VERSION, config.run.name,
                   config.run.seed, config_hash(config)));
  info(fmt::format("devices: {} ({}), transport {}, precision {}{}", run.devices,
                   run.devices_by_default ? "the default; choose with -d" : "as asked",
                   run.transport, to_string(config.run.precision), convolutions_of(run)));
  if (!run.threads.empty()) info("threads: " + run.threads);
  if (!run.processes.empty()) info("processes: " + run.processes);
  info(fmt::format("gradient exchange: {} ({})", run.gradient_exchange, run.exchange_reason));
  info(fmt::format("model: {}, {} classes, {} parameters", config.architecture().description,
                   config.model.num_classes, run.parameters));
  if (run.convolutions) info("convolutions: " + *run.convolutions);
  const std::int64_t batch = config.global_batch(run.device_count);
  info(fmt::format("batch: {} images of {}x{} = {} on {} devices; {} steps per epoch, {} in all",
                   batch, run.size.height, run.size.width,
                   fmt::join(chunk_sizes(batch, run.device_count), " + "), run.device_count,
                   run.steps_per_epoch, run.max_iters));
  const int group = config.bn.sync_group > 0 ? config.bn.sync_group : run.device_count;
  info(fmt::format("batch_norm: {}; evaluation uses {}",
                   config.bn.sentence(run.device_count, group), to_string(config.bn.eval_stats)));
  info(fmt::format("logs: {}", run.folder.root.string()));
  if (!run.resumed.empty()) {
    info(fmt::format("resumed {} at step {}", run.resumed.string(), run.step));
  }
  for (const std::string& text : run.started) info(text);
}

void RunLog::step(const StepReport& report) { info(format_step(report)); }

void RunLog::evaluation(const EvaluationRecord& record) {
  info(format_validation(record.evaluation));
}

void RunLog::end(const RunEnd& end) {
  if (!end.warning.empty()) warning(end.warning);
  if (end.text.empty()) return;
  clear_progress();
  bare_->info(end.text);
}

void RunLog::info(const std::string& text) {
  clear_progress();
  logger_->info(text);
}

void RunLog::warning(std::int64_t /*step*/, const std::string& text) { warning(text); }

void RunLog::warning(const std::string& text) {
  clear_progress();
  logger_->warn(text);
}

void RunLog::record_error(const std::string& text) {
  clear_progress();
  file_->error(text);
}

void RunLog::show_progress(std::int64_t done, std::int64_t total, double loss) const {
  if (quiet_) return;
  lockstep::show_progress({"training", "steps", done, total, fmt::format("loss {:.4f}", loss)});
}

}  // namespace lockstep
