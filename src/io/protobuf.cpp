#include "io/protobuf.h"

#include <bit>

namespace lockstep {
namespace {

// Wire types.
constexpr int kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

}  // namespace

// Seven bits to a byte, the lowest first; the eighth says that more follow.
void ProtobufMessage::add_varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(0x80 | (value & 0x7F)));
  bytes_.push_back(static_cast<char>(value));
}

void ProtobufMessage::add_key(int field, int wire_type) {
  add_varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

// Little-endian, whatever the machine is.
template <typename Unsigned>
void ProtobufMessage::add_fixed(Unsigned value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes_.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  }
}

// A negative number takes ten bytes, as its two's complement in 64 bits.
void ProtobufMessage::add_int(int field, std::int64_t value) {
  add_key(field, kVarint);
  add_varint(static_cast<std::uint64_t>(value));
}

void ProtobufMessage::add_float(int field, float value) {
  add_key(field, kFixed32);
  add_fixed(std::bit_cast<std::uint32_t>(value));
}

void ProtobufMessage::add_double(int field, double value) {
  add_key(field, kFixed64);
  add_fixed(std::bit_cast<std::uint64_t>(value));
}

void ProtobufMessage::add_bytes(int field, std::string_view value) {
  add_key(field, kLengthDelimited);
  add_varint(value.size());
  bytes_ += value;
}

void ProtobufMessage::add_message(int field, const ProtobufMessage& value) {
  add_bytes(field, value.bytes());
}

}  // namespace lockstep
