#pragma once
// Man pages, of what the command line declares.

#include <filesystem>

namespace CLI {
class App;
}

namespace lockstep {

/// Writes lockstep.1 and lockstep-<subcommand>.1 for every subcommand into `folder`, which is made
/// where it is not there. Equal from run to run. Throws Error.
void write_man_pages(const CLI::App& app, const std::filesystem::path& folder);

}  // namespace lockstep
