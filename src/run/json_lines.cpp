#include "run/json_lines.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "io/atomic_file.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"
#include "run/run_folder.h"

namespace lockstep {

void JsonLines::write(const Json& line) { file_.write(json_text(line) + '\n'); }

void for_each_json_line(const std::filesystem::path& path,
                        const std::function<void(const Json& line)>& use) {
  std::error_code unknown;
  const std::string why_not = why_unreadable(path);
  if (!why_not.empty() && std::filesystem::exists(path, unknown)) {
    throw DataError(concat(path.string(), ": cannot be read: ", why_not));
  }
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

}  // namespace lockstep
