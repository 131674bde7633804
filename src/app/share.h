#pragma once
// What is installed beside the program for people: the documentation and the example
// configurations, in the places that they have in the source tree.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// The folder ../share/lockstep as seen from the program's; in a build folder it leads to the
/// source tree. Nothing when it is not there.
std::optional<std::filesystem::path> share_folder();

/// `path` itself, unless only share_folder() has a file of that name: then that, and a line on
/// stderr says so.
std::filesystem::path here_or_shared(const std::filesystem::path& path);

/// Example configurations, as paths that here_or_shared() takes.
std::vector<std::string> shared_configs();

/// A page of the documentation.
struct DocsPage {
  std::string name;   // "run_folder"
  std::string title;  // its first heading
  std::filesystem::path path;
};

/// All pages, in order of their names. Throws ConfigError when they are not there.
std::vector<DocsPage> docs_pages();

}  // namespace lockstep
