#include "run/shell_word.h"

#include <algorithm>
#include <string_view>

namespace lockstep {
namespace {

bool is_plain(char c) {
  constexpr std::string_view kPlain = "_-./:,=+@%";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlain.find(c) != std::string_view::npos;
}

}  // namespace

std::string shell_word(const std::string& word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";  // a quote ends the quotes, stands escaped, and begins them again
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace lockstep
