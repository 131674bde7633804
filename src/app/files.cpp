#include "app/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <system_error>

#include "lockstep/core/check.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path program_folder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

fs::path expected_share_folder() {
  return (program_folder() / ".." / "share" / "lockstep").lexically_normal();
}

/// Regular files in `folder` and below that end in `extension`, in order of their names.
std::vector<fs::path> files_in(const fs::path& folder, const char* extension) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file() && entry.path().extension() == extension)
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::string title_of(const fs::path& page) {
  std::ifstream stream(page);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("# ")) return line.substr(2);
  }
  return "";
}

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
    const std::array files{own.config(), own.log(),         own.scalars(), own.timing(),
                           own.events(), own.environment(), own.data(),    folder / "lock"};
    return std::ranges::find(files, file) != files.end() ||
           file.filename().string().starts_with("config.until_");
  }
  if (is_run(above.root)) {
    const std::array folders{above.checkpoints(), above.rank_logs(), above.tensorboard()};
    return std::ranges::find(folders, folder) != folders.end();
  }
  return is_there(folder / "comparison.json") &&
         (file == folder / "comparison.json" || file == folder / "comparison.md");
}

}  // namespace

std::optional<fs::path> share_folder() {
  const fs::path folder = expected_share_folder();
  std::error_code error;
  return fs::is_directory(folder, error) ? std::optional(folder) : std::nullopt;
}

fs::path find_shared(const fs::path& path) {
  std::error_code error;
  if (path.empty() || path.is_absolute() || fs::exists(path, error)) return path;
  const auto share = share_folder();
  return share && fs::is_regular_file(*share / path, error) ? *share / path : path;
}

fs::path here_or_shared(const fs::path& path) {
  fs::path found = find_shared(path);
  if (found != path) {
    fmt::print(stderr, "lockstep: {} is not in this folder; taking {}\n", path.string(),
               found.string());
  }
  return found;
}

std::vector<std::string> shared_configs() {
  std::vector<std::string> configs;
  const auto share = share_folder();
  if (!share) return configs;
  for (const fs::path& file : files_in(*share / "data/configs", ".toml"))
    configs.push_back("data/configs/" + file.filename().string());
  return configs;
}

std::vector<DocsPage> docs_pages() {
  const fs::path share = expected_share_folder();
  std::vector<DocsPage> pages;
  for (const fs::path& file : files_in(share / "docs", ".md")) {
    const std::string name = file.stem().string();
    pages.push_back({name == "README" ? "index" : name, title_of(file), file});
  }
  if (pages.empty()) {
    throw ConfigError(fmt::format(
        "docs: expected the documentation in {}, and there is none; `cmake --install` and the "
        "Debian package put it there",
        (share / "docs").string()));
  }
  for (const auto& [name, file] : {std::pair{"readme", "README.md"}, {"data", "data/README.md"}}) {
    if (fs::exists(share / file)) pages.push_back({name, title_of(share / file), share / file});
  }
  std::ranges::sort(pages, {}, &DocsPage::name);
  return pages;
}

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

}  // namespace lockstep
