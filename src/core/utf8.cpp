#include "core/utf8.h"

#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace lockstep
