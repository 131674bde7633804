#include "app/output_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>

#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

bool is_run(const fs::path& folder) {
  return is_there(RunFolder{folder}.config()) && is_there(RunFolder{folder}.events());
}

/// Whether `file`, of which only the last part may be missing, belongs to a run or a comparison.
bool is_record(const fs::path& file) {
  const fs::path folder = file.parent_path();
  const RunFolder own{folder}, above{folder.parent_path()};
  if (is_run(folder)) {
    const std::array files{own.config(), own.log(),    own.scalars(),
                           own.timing(), own.events(), own.environment()};
    return std::find(files.begin(), files.end(), file) != files.end();
  }
  if (is_run(above.root)) {
    const std::array folders{above.checkpoints(), above.rank_logs(), above.tensorboard()};
    return std::find(folders.begin(), folders.end(), folder) != folders.end();
  }
  return file == folder / "comparison.json" && is_there(file);
}

}  // namespace

void check_output_file(const std::string& option, const fs::path& output,
                       std::span<const fs::path> inputs) {
  const fs::path folder = fs::absolute(output).parent_path();
  if (!fs::is_directory(folder)) {
    throw ConfigError(fmt::format("{} {}: there is no folder {}; make it first", option,
                                  output.string(), folder.string()));
  }
  if (fs::is_directory(output)) {
    throw ConfigError(
        fmt::format("{} {}: is a folder; expected the file to write", option, output.string()));
  }
  std::error_code unknown;
  const bool read = std::ranges::any_of(
      inputs, [&](const fs::path& input) { return fs::equivalent(input, output, unknown); });
  if (read) {
    throw ConfigError(
        fmt::format("{} {}: is what is read; choose another file", option, output.string()));
  }
  if (is_record(fs::weakly_canonical(output, unknown))) {
    throw ConfigError(
        fmt::format("{} {}: is among the files that a run or a comparison keeps; choose another "
                    "one",
                    option, output.string()));
  }
}

void write_output(const fs::path& output, const std::string& bytes) {
  std::error_code unknown;
  if (!is_there(output) || fs::is_regular_file(output, unknown)) {
    write_file_atomically(output, bytes);
    return;
  }
  std::FILE* file = std::fopen(output.c_str(), "w");
  const bool written =
      file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool flushed = written && std::fflush(file) == 0;
  const int reason = errno;
  if (file != nullptr) std::fclose(file);
  if (!flushed) {
    throw Error(fmt::format("cannot write {}: {}", output.string(), std::strerror(reason)));
  }
}

}  // namespace lockstep
