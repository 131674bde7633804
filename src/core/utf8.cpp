#include "core/utf8.h"

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/core/check.h"

namespace lockstep {

bool is_utf8(std::string_view text) {
  try {
    // Strict: it throws at anything else.
    static_cast<void>(nlohmann::json(std::string(text)).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string plain_text(std::string bytes) {
  constexpr std::string_view kUtf8 = "\xEF\xBB\xBF", kBigEndian = "\xFE\xFF",
                             kLittleEndian = "\xFF\xFE";
  const bool marked = bytes.starts_with(kBigEndian) || bytes.starts_with(kLittleEndian);
  // Of plain letters every other byte of UTF-16 is 0.
  if (marked || bytes.substr(0, 4).find('\0') != std::string::npos) {
    throw DataError("it is text in UTF-16 (\"Unicode\" of some editors); save it as UTF-8");
  }
  if (const std::size_t zero = bytes.find('\0'); zero != std::string::npos) {
    throw DataError(concat("byte ", zero, " is 0: it is no text"));
  }
  if (bytes.starts_with(kUtf8)) bytes.erase(0, kUtf8.size());
  return bytes;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace lockstep
