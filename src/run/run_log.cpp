#include "run/run_log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "core/json.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"
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

std::unique_ptr<spdlog::formatter> prefixed() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<UpperLevel>('*').set_pattern("%m/%d %H:%M:%S - %n - %^%*%$ - %v");
  return formatter;
}

std::unique_ptr<spdlog::formatter> unprefixed() {
  return std::make_unique<spdlog::pattern_formatter>("%v");
}

spdlog::sink_ptr console_sink(Console console) {
  const auto color = std::getenv("NO_COLOR") != nullptr ? spdlog::color_mode::never
                                                        : spdlog::color_mode::automatic;
  if (console == Console::kStdout)
    return std::make_shared<spdlog::sinks::stdout_color_sink_mt>(color);
  return std::make_shared<spdlog::sinks::stderr_color_sink_mt>(color);
}

std::shared_ptr<spdlog::logger> make_logger(const std::vector<spdlog::sink_ptr>& sinks) {
  auto logger = std::make_shared<spdlog::logger>("lockstep", sinks.begin(), sinks.end());
  logger->flush_on(spdlog::level::info);
  return logger;
}

// Sinks carry their formatter, so every logger has its own; both append to the same file.
std::vector<spdlog::sink_ptr> sinks_for(const RunFolder& folder, Console console,
                                        std::unique_ptr<spdlog::formatter> (*formatter)()) {
  std::vector<spdlog::sink_ptr> sinks{
      std::make_shared<spdlog::sinks::basic_file_sink_mt>(folder.log().string())};
  if (console != Console::kQuiet) {
    sinks.push_back(console_sink(console));
    if (console == Console::kWarnings) sinks.back()->set_level(spdlog::level::warn);
  }
  for (const spdlog::sink_ptr& sink : sinks) sink->set_formatter(formatter());
  return sinks;
}

/// Seconds since 1970.
double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

}  // namespace

JsonLines::JsonLines(std::filesystem::path path)
    : path_(std::move(path)), stream_(path_, std::ios::app | std::ios::binary) {
  if (!stream_) throw Error(concat("cannot write ", path_.string()));
}

void JsonLines::write(const Json& line) {
  stream_ << json_text(line) << '\n';
  stream_.flush();
  if (!stream_) throw Error(concat("cannot write ", path_.string(), ": is the disk full?"));
}

void for_each_json_line(const std::filesystem::path& path,
                        const std::function<void(const Json& line)>& use) {
  std::ifstream stream(path, std::ios::binary);
  std::int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.starts_with(R"({"type":"bn_part")")) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) {
      if (stream.eof()) return;
      throw DataError(concat(path.string(), ":", number,
                             ": damaged: expected a JSON object, got \"", line.substr(0, 40),
                             line.size() > 40 ? "...\"" : "\"",
                             "; without this line the others can be read"));
    }
    try {
      use(json);
    } catch (const Json::exception& error) {
      throw DataError(concat(path.string(), ":", number, ": damaged: ", error.what()));
    }
  }
}

namespace {

/// Of a line of JSON; none: it is damaged.
std::optional<std::int64_t> step_of(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end()) return 0;
  return step->is_number_integer() ? std::optional(step->get<std::int64_t>()) : std::nullopt;
}

}  // namespace

int trim_json_lines(const std::filesystem::path& path, std::int64_t step) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream kept;
  int removed = 0;
  for (std::string line; std::getline(stream, line);) {
    const auto own = step_of(Json::parse(line, nullptr, false));
    if (own && !stream.eof() && *own <= step) {
      kept << line << '\n';
    } else {
      ++removed;
    }
  }
  stream.close();
  if (removed > 0) write_file_atomically(path, kept.str());
  return removed;
}

void trim_cut_line(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const std::streamoff length = stream ? std::streamoff{stream.tellg()} : 0;
  if (length == 0) return;
  // More and more of the end, until there is the end of a line, or all of the file.
  for (std::streamoff size = std::min<std::streamoff>(length, 1 << 16);;
       size = std::min(length, 2 * size)) {
    std::string end(static_cast<std::size_t>(size), '\0');
    stream.seekg(length - size);
    stream.read(end.data(), size);
    const std::size_t whole = end.rfind('\n') + 1;  // 0: there is none
    if (whole == 0 && size < length) continue;
    stream.close();
    if (whole < end.size()) {
      std::filesystem::resize_file(
          path, static_cast<std::uintmax_t>(length - size) + static_cast<std::uintmax_t>(whole));
    }
    return;
  }
}

void trim_rank_logs(const RunFolder& folder, std::int64_t step) {
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder.rank_logs(), missing)) {
    trim_json_lines(entry.path(), step);
  }
}

std::int64_t last_validated_step(const std::filesystem::path& scalars) {
  std::int64_t last = -1;
  for_each_json_line(scalars, [&](const Json& json) {
    if (json.value("mode", "") == "val") last = json.value("step", last);
  });
  return last;
}

RunLog::RunLog(const RunFolder& folder, Console console, int rank_logs,
               std::optional<std::int64_t> tensorboard)
    : logger_(make_logger(sinks_for(folder, console, prefixed))),
      file_(make_logger(sinks_for(folder, Console::kQuiet, prefixed))),
      bare_(make_logger(sinks_for(folder, console, unprefixed))),
      quiet_(console == Console::kQuiet || console == Console::kWarnings),
      scalars_(folder.scalars()),
      timing_(folder.timing()),
      events_(folder.events()) {
  for (int rank = 0; rank < rank_logs; ++rank) rank_logs_.emplace_back(folder.rank_log(rank));
  if (tensorboard) tensorboard_.emplace(folder.tensorboard(), wall_time(), *tensorboard);
}

void RunLog::write_scalars(const Json& line) {
  scalars_.write(line);
  if (!tensorboard_) return;
  for (const Scalar& scalar : scalars_of(line))
    tensorboard_->add_scalar(scalar.tag, scalar.step, wall_time(), scalar.value);
}

void RunLog::write_image(const std::string& tag, std::int64_t step, const Image& image) {
  if (tensorboard_) tensorboard_->add_image(tag, step, wall_time(), image);
}

void RunLog::begin_session(const HyperParameters& parameters) {
  if (tensorboard_) tensorboard_->begin_session(parameters, wall_time());
}

void RunLog::end_session(const std::string& status) {
  if (!tensorboard_) return;
  const SessionStatus ended = status == "done"     ? SessionStatus::kSuccess
                              : status == "failed" ? SessionStatus::kFailure
                                                   : SessionStatus::kUnknown;
  tensorboard_->end_session(ended, wall_time());
}

void RunLog::info(const std::string& text) {
  clear_progress();
  logger_->info(text);
}

void RunLog::warning(const std::string& text) {
  clear_progress();
  logger_->warn(text);
}

void RunLog::record_error(const std::string& text) {
  clear_progress();
  file_->error(text);
}

void RunLog::plain(const std::string& text) {
  clear_progress();
  bare_->info(text);
}

void RunLog::rank_event(int rank, const Json& line) {
  events_.write(line);
  if (!rank_logs_.empty()) rank_logs_[static_cast<std::size_t>(rank)].write(line);
}

void RunLog::show_progress(std::int64_t done, std::int64_t total, double loss) const {
  if (quiet_) return;
  lockstep::show_progress({"training", "steps", done, total, fmt::format("loss {:.4f}", loss)});
}

}  // namespace lockstep
