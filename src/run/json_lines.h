#pragma once
// Files of JSON lines: every line is flushed when written, and a write that fails is an Error that
// names the file. Where a run goes on, what lies after the step it goes on from is taken away.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>

#include "core/json.h"
#include "io/written_file.h"
#include "run/run_folder.h"

namespace lockstep {

/// A file of JSON lines. Appends; used by one thread.
class JsonLines {
 public:
  explicit JsonLines(std::filesystem::path path)
      : file_(std::move(path), WrittenFile::Mode::kAppend) {}
  void write(const Json& line);

 private:
  WrittenFile file_;
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

}  // namespace lockstep
