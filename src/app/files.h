#pragma once
// The files of a command: those that come with Lockstep, in the places that they have in the source
// tree, and those that it writes.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// The folder ../share/lockstep as seen from the program's; in a build folder it leads to the
/// source tree. Nothing when it is not there.
std::optional<std::filesystem::path> share_folder();

/// `path` itself, unless only share_folder() has a file of that name: then that.
std::filesystem::path find_shared(const std::filesystem::path& path);

/// The same of what a person has named: a line on stderr says where it was found.
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

/// Throws ConfigError where `output` is no file that could be written: its folder is not there, it
/// is a folder itself, or what it would destroy cannot be had again: one of `inputs`, or a file
/// that a run or a comparison has written for itself. `option` is how the user said it.
void check_output_file(const std::string& option, const std::filesystem::path& output,
                       std::span<const std::filesystem::path> inputs = {});

}  // namespace lockstep
