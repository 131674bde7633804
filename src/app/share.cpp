#include "app/share.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "lockstep/core/check.h"

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
  std::sort(files.begin(), files.end());
  return files;
}

std::string title_of(const fs::path& page) {
  std::ifstream stream(page);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("# ")) return line.substr(2);
  }
  return "";
}

}  // namespace

std::optional<fs::path> share_folder() {
  const fs::path folder = expected_share_folder();
  std::error_code error;
  return fs::is_directory(folder, error) ? std::optional(folder) : std::nullopt;
}

fs::path here_or_shared(const fs::path& path) {
  std::error_code error;
  if (path.empty() || path.is_absolute() || fs::exists(path, error)) return path;
  const auto share = share_folder();
  if (!share || !fs::is_regular_file(*share / path, error)) return path;
  const fs::path shared = *share / path;
  fmt::print(stderr, "lockstep: {} is not in this folder; taking {}\n", path.string(),
             shared.string());
  return shared;
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
  std::sort(pages.begin(), pages.end(),
            [](const DocsPage& a, const DocsPage& b) { return a.name < b.name; });
  return pages;
}

}  // namespace lockstep
