#pragma once
// The JSON of run folders, reports and --json.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lockstep {

using Json = nlohmann::ordered_json;  // keys in the order in which they were written

/// `json` as text; indent -1: one line. Names of files need not be UTF-8, JSON must be: what is not
/// becomes U+FFFD.
std::string json_text(const Json& json, int indent = -1);

template <typename Value>
Json json_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace lockstep
