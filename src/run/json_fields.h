#pragma once
// A plain record as JSON, written and read by one list of its fields: a function template
// `fields(visitor, record)`
// in the records' namespace, which calls visitor(key, field) for each field in the
// order of the file. nlohmann's macros make such lists for nlohmann::json alone, whose keys are
// sorted, with the fields' names as keys, and null for nothing is beyond them.

#include <concepts>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/json.h"

namespace lockstep {

/// A record of this type, to be written (const) or read.
template <typename Type, typename Record>
concept Of = std::same_as<std::remove_const_t<Type>, Record>;

class JsonWriter {
 public:
  explicit JsonWriter(Json& json) : json_(json) {}

  template <typename Value>
  void operator()(const char* key, const Value& value) {
    json_[key] = to_json(value);
  }
  /// A field that older files do not have.
  template <typename Value>
  void added(const char* key, const Value& value) {
    (*this)(key, value);
  }
  /// A field with a form of its own.
  template <typename Value, typename Write, typename Read>
  void as(const char* key, const Value& value, const Write& write, const Read& /*read*/) {
    json_[key] = write(value);
  }
  /// Whether the fields that follow are there, the first of them `key`; the writer knows.
  bool has(const char* /*key*/, bool known) const { return known; }

 private:
  template <typename Value>
  static Json to_json(const Value& value) {
    if constexpr (requires(JsonWriter writer) { fields(writer, value); }) {
      Json json;
      JsonWriter writer(json);
      fields(writer, value);
      return json;
    } else {
      return Json(value);
    }
  }
  template <typename Value>
  static Json to_json(const std::optional<Value>& value) {
    return json_or_null(value);
  }
  template <typename Value>
  static Json to_json(const std::vector<Value>& values) {
    Json json = Json::array();
    for (const Value& value : values) json.push_back(to_json(value));
    return json;
  }

  Json& json_;
};

/// Throws Json::exception for what is missing or of another type.
class JsonReader {
 public:
  explicit JsonReader(const Json& json) : json_(json) {}

  template <typename Value>
  void operator()(const char* key, Value& value) {
    read_value(json_.at(key), value);
  }
  template <typename Value>
  void added(const char* key, Value& value) {
    if (json_.contains(key)) (*this)(key, value);
  }
  template <typename Value, typename Write, typename Read>
  void as(const char* key, Value& value, const Write& /*write*/, const Read& read) {
    value = read(json_.at(key));
  }
  bool has(const char* key, bool /*known*/) const { return json_.contains(key); }

 private:
  template <typename Value>
  static void read_value(const Json& json, Value& value) {
    if constexpr (requires(JsonReader reader) { fields(reader, value); }) {
      JsonReader reader(json);
      fields(reader, value);
    } else if constexpr (std::is_floating_point_v<Value>) {
      // Which the writer, as JSON has no other word for it, has made null.
      constexpr Value kNotFinite = std::numeric_limits<Value>::quiet_NaN();
      value = json.is_null() ? kNotFinite : json.get<Value>();
    } else {
      json.get_to(value);
    }
  }
  template <typename Value>
  static void read_value(const Json& json, std::optional<Value>& value) {
    value = json.is_null() ? std::nullopt : std::optional(json.get<Value>());
  }
  template <typename Value>
  static void read_value(const Json& json, std::vector<Value>& values) {
    values.clear();
    for (const Json& element : json) read_value(element, values.emplace_back());
  }

  const Json& json_;
};

/// Adds the fields of `record` to `json`.
template <typename Record>
Json with_fields(Json json, const Record& record) {
  JsonWriter writer(json);
  fields(writer, record);
  return json;
}

template <typename Record>
Record read_fields(const Json& json) {
  Record record;
  JsonReader reader(json);
  fields(reader, record);
  return record;
}

}  // namespace lockstep
