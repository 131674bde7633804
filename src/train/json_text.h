#pragma once
// JSON as it is written to files and terminals.

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

/// `json` as text; indent -1: one line. Names of files need not be UTF-8, JSON must be: what is not
/// becomes U+FFFD.
template <typename AnyJson>
std::string json_text(const AnyJson& json, int indent = -1) {
  return json.dump(indent, ' ', false, AnyJson::error_handler_t::replace);
}

}  // namespace lockstep
