#include "run/run_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "core/words.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

constexpr LogLevel kInfo{"INFO", "\033[32m"}, kWarning{"WARNING", "\033[33m\033[1m"},
    kError{"ERROR", ""};

// By the descriptor: a stream that stands for it may have none (app/terminal.h).
bool shows_colors(int descriptor) {
  const char* const terminal = std::getenv("TERM");
  return isatty(descriptor) == 1 && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

std::string convolutions_of(const RunDescription& run) {
  if (run.tf32) return " with TF32 convolutions (run.tf32 = false: exact fp32)";
  if (run.threads.empty() || run.config.run.precision != DType::kBFloat16) return "";
  if (run.bf16_products.empty()) return " of activations in memory, arithmetic in fp32";
  return fmt::format(" with bf16 convolutions, by {}", run.bf16_products);
}

}  // namespace

RunLog::RunLog(const RunFolder& folder, Console console)
    : file_(folder.log(), WrittenFile::Mode::kAppend),
      console_(console),
      colors_(shows_colors(console == Console::kStdout ? STDOUT_FILENO : STDERR_FILENO)) {}

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
  info(fmt::format(
      "batch: {} of {}x{} = {} on {}; {} per epoch, {} in all", count_of(batch, "image"),
      run.size.height, run.size.width, fmt::join(chunk_sizes(batch, run.device_count), " + "),
      count_of(run.device_count, "device"), count_of(run.steps_per_epoch, "step"), run.max_iters));
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
  write(end.text + "\n", console_ == Console::kStdout ? end.text + "\n" : "");
}

void RunLog::info(const std::string& text) { write(kInfo, text, console_ == Console::kStdout); }

void RunLog::warning(std::int64_t /*step*/, const std::string& text) { warning(text); }

void RunLog::warning(const std::string& text) {
  write(kWarning, text, console_ != Console::kQuiet);
}

void RunLog::record_error(const std::string& text) { write(kError, text, false); }

void RunLog::write(const LogLevel& level, const std::string& text, bool shown) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const auto line = [&](bool colors) {
    return fmt::format("{:%m/%d %H:%M:%S} - lockstep - {}{}{} - {}\n", local,
                       colors ? level.color : "", level.name, colors ? "\033[m" : "", text);
  };
  write(line(false), shown ? line(colors_) : "");
}

void RunLog::write(const std::string& to_file, const std::string& to_console) {
  clear_progress();
  const std::lock_guard lock(mutex_);
  file_.write(to_file);
  if (to_console.empty()) return;
  std::FILE* const stream = console_ == Console::kStdout ? stdout : stderr;
  std::fwrite(to_console.data(), 1, to_console.size(), stream);
  std::fflush(stream);
}

void RunLog::show_progress(std::int64_t done, std::int64_t total, double loss) const {
  if (console_ != Console::kStdout) return;
  lockstep::show_progress({"training", "steps", done, total, fmt::format("loss {:.4f}", loss)});
}

}  // namespace lockstep
