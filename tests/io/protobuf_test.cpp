#include "io/protobuf.h"

#include <doctest/doctest.h>

namespace lockstep {
namespace {

std::string hex(const ProtobufMessage& message) {
  std::string text;
  for (const char byte : message.bytes()) {
    for (const int digit : {byte >> 4 & 15, byte & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

}  // namespace

// The numbers 150, "testing" and the nested 150 are the examples of the encoding's description.
TEST_CASE("protobuf: fields as the encoding's description has them") {
  const auto of_int = [](int field, std::int64_t value) {
    ProtobufMessage message;
    message.add_int(field, value);
    return hex(message);
  };
  CHECK(of_int(1, 150) == "089601");
  CHECK(of_int(1, 0) == "0800");
  CHECK(of_int(1, 127) == "087f");
  CHECK(of_int(1, 128) == "088001");
  CHECK(of_int(20, 7) == "a00107");  // a key of two bytes
  CHECK(of_int(1, -2) == "08feffffffffffffffff01");

  ProtobufMessage text;
  text.add_bytes(2, "testing");
  CHECK(hex(text) == "120774657374696e67");

  ProtobufMessage inner, outer;
  inner.add_int(1, 150);
  outer.add_message(3, inner);
  CHECK(hex(outer) == "1a03089601");

  ProtobufMessage numbers;
  numbers.add_float(2, 1.5F);
  numbers.add_double(1, -2.0);
  CHECK(hex(numbers) == "150000c03f0900000000000000c0");
}

TEST_CASE("protobuf: lengths above 127 take two bytes, and the bytes stay as they are") {
  const std::string data(300, '\0');
  ProtobufMessage message;
  message.add_bytes(1, data);
  CHECK(message.bytes() == std::string("\x0a\xac\x02", 3) + data);
}

}  // namespace lockstep
