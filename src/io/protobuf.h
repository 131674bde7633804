#pragma once
// Writes messages of Protocol Buffers as bytes (https://protobuf.dev/programming-guides/encoding).
// The fields' numbers and types are the caller's, from the format's .proto file; fields are written
// in the order of the calls, and a repeated field by repeated calls.

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// One message. Copies what it is given.
class ProtobufMessage {
 public:
  /// int32, int64, uint64, bool and enum fields.
  void add_int(int field, std::int64_t value);
  void add_float(int field, float value);
  void add_double(int field, double value);
  /// string and bytes fields.
  void add_bytes(int field, std::string_view value);
  void add_message(int field, const ProtobufMessage& value);

  const std::string& bytes() const { return bytes_; }

 private:
  void add_varint(std::uint64_t value);
  void add_key(int field, int wire_type);
  template <typename Unsigned>
  void add_fixed(Unsigned value);

  std::string bytes_;
};

}  // namespace lockstep
