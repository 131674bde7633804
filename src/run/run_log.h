#pragma once
// The files of a run that grow: run.log (lines for people, also on the console), scalars.json (what
// only configuration and device count decide), timing.jsonl (what time touches), events.jsonl
// (typed) and, where they are wanted, the ranks' own (the lines of events.jsonl that speak of one
// rank). Every line is flushed when written; a write that fails is an Error that names the file.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "run/run_folder.h"
#include "run/tensorboard.h"

namespace spdlog {
class logger;
}

namespace lockstep {

/// Where the lines for people go; run.log always has them. kWarnings: those alone, to stderr.
enum class Console : std::uint8_t { kStdout, kWarnings, kQuiet };

/// A file of JSON lines. Appends; used by one thread.
class JsonLines {
 public:
  explicit JsonLines(std::filesystem::path path);
  void write(const Json& line);

 private:
  std::filesystem::path path_;
  std::ofstream stream_;
};

/// Reads lines of JSON objects. The last one of a run that is at work, or was killed, may be cut
/// off, and is left out. A file that is not there has none. Parts of BatchNorm's statistics
/// ("bn_part"), by far the longest lines, are passed over. Throws DataError naming a line that is
/// no object, or where `use` throws a Json::exception.
void for_each_json_line(const std::filesystem::path& path,
                        const std::function<void(const Json& line)>& use);

/// Removes from a file of JSON lines what lies after `step` (it will be written again), a last
/// line that a crash cut off and what is none of ours. Returns how many lines went.
int trim_json_lines(const std::filesystem::path& path, std::int64_t step);

/// Removes a last line that a crash cut off, and nothing else.
void trim_cut_line(const std::filesystem::path& path);

/// As trim_json_lines, for the logs of all ranks that there are.
void trim_rank_logs(const RunFolder& folder, std::int64_t step);

/// The last step that scalars.json has a validation of; -1: none.
std::int64_t last_validated_step(const std::filesystem::path& scalars);

/// The trainer's, used by its thread.
class RunLog {
 public:
  /// `rank_logs`: how many ranks have a log of their own; 0: none. `tensorboard`: the first step
  /// of event files for TensorBoard; none: there are none.
  RunLog(const RunFolder& folder, Console console, int rank_logs,
         std::optional<std::int64_t> tensorboard = std::nullopt);

  /// A line for people: console and run.log.
  void info(const std::string& text);
  void warning(const std::string& text);
  /// run.log only: who throws an error leaves it to `main` to show it.
  void record_error(const std::string& text);
  /// Lines without time and level.
  void plain(const std::string& text);

  /// Tells who shows progress (core/progress.h), if the console has all lines.
  void show_progress(std::int64_t done, std::int64_t total, double loss) const;

  /// A line of scalars.json, and where they are wanted the same numbers for TensorBoard.
  void write_scalars(const Json& line);
  // The rest of TensorBoard's file; nothing where there is none.
  void write_image(const std::string& tag, std::int64_t step, const Image& image);
  void begin_session(const HyperParameters& parameters);
  /// `status`: done, interrupted or failed.
  void end_session(const std::string& status);
  JsonLines& timing() { return timing_; }
  JsonLines& events() { return events_; }
  /// A line of events.jsonl that speaks of this rank alone.
  void rank_event(int rank, const Json& line);

 private:
  std::shared_ptr<spdlog::logger> logger_;  // console and file
  std::shared_ptr<spdlog::logger> file_;    // run.log alone
  std::shared_ptr<spdlog::logger> bare_;    // console and file, no prefix
  bool quiet_ = false;                      // the console has warnings at most
  JsonLines scalars_, timing_, events_;
  std::optional<TensorBoardFile> tensorboard_;
  std::vector<JsonLines> rank_logs_;  // [rank], or none
};

}  // namespace lockstep
