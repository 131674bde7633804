#pragma once
// Paths as people write them.

#include <filesystem>

namespace lockstep {

/// `path` with "~" or "~name" at its beginning as a shell expands it: $HOME, or where that is not
/// set the home folder that the system knows, of this user or of `name`. Other paths, and those of
/// a user that there is not, stay as they are. From one thread at a time.
std::filesystem::path expand_home(const std::filesystem::path& path);

/// Where `own` lies that is kept between runs: $VARIABLE if it is set, else in $XDG_CACHE_HOME or
/// ~/.cache; empty where none of them is known. From one thread at a time.
std::filesystem::path cache_path(const char* variable, const std::filesystem::path& own);

}  // namespace lockstep
