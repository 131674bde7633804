#include "core/home_path.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace lockstep {
namespace {

// "": nobody knows.
std::string home_of(const std::string& name) {
  const char* own = std::getenv("HOME");
  if (name.empty() && own != nullptr && *own != '\0') return own;
  const passwd* user = name.empty() ? ::getpwuid(::getuid()) : ::getpwnam(name.c_str());
  return user == nullptr ? "" : user->pw_dir;
}

}  // namespace

std::filesystem::path expand_home(const std::filesystem::path& path) {
  const std::string text = path.string();
  if (!text.starts_with('~')) return path;
  const std::size_t end = std::min(text.find('/'), text.size());
  const std::string home = home_of(text.substr(1, end - 1));
  return home.empty() ? path : std::filesystem::path(home + text.substr(end));
}

std::filesystem::path cache_path(const char* variable, const std::filesystem::path& own) {
  if (const char* chosen = std::getenv(variable)) return chosen;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return cache / own;
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return home / (".cache" / own);
  return {};
}

}  // namespace lockstep
