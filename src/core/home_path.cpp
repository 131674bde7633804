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

}  // namespace lockstep
