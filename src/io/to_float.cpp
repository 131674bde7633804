#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "io/weight_files.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

template <typename Element, typename Widen>
std::vector<float> convert(const HostTensor& tensor, const Widen& widen) {
  std::vector<float> values(tensor.data.size() / sizeof(Element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, &tensor.data[i * sizeof(Element)], sizeof(Element));
    values[i] = widen(element);
  }
  return values;
}

template <typename Number>
std::optional<std::int64_t> whole(Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    return value >= 0 && value < Number{0x1p63} ? std::optional(std::llround(value)) : std::nullopt;
  } else {
    return std::in_range<std::int64_t>(value) ? std::optional<std::int64_t>(value) : std::nullopt;
  }
}

template <typename Number>
std::optional<std::int64_t> count_of(const HostTensor& tensor) {
  Number value{};
  if (tensor.data.size() != sizeof value) return std::nullopt;
  std::memcpy(&value, tensor.data.data(), sizeof value);
  return whole(value);
}

std::optional<std::int64_t> count_of_half(const HostTensor& tensor) {
  return tensor.data.size() == 2 ? whole(to_floats(tensor).front()) : std::nullopt;
}

struct CountType {
  std::string_view dtype;
  std::optional<std::int64_t> (*read)(const HostTensor& tensor);
};
constexpr CountType kCountTypes[] = {
    {"I64", count_of<std::int64_t>},  {"I32", count_of<std::int32_t>},
    {"I16", count_of<std::int16_t>},  {"I8", count_of<std::int8_t>},
    {"U64", count_of<std::uint64_t>}, {"U32", count_of<std::uint32_t>},
    {"U16", count_of<std::uint16_t>}, {"U8", count_of<std::uint8_t>},
    {"BOOL", count_of<std::uint8_t>}, {"F64", count_of<double>},
    {"F32", count_of<float>},         {"F16", count_of_half},
    {"BF16", count_of_half},
};

}  // namespace

float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16, exponent = bits >> 10 & 0x1fU,
                      fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t widened = exponent == 0x1f ? 0xffU : exponent + 127 - 15;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

std::optional<std::int64_t> to_count(const HostTensor& tensor) {
  for (const CountType& type : kCountTypes) {
    if (type.dtype == tensor.dtype) return type.read(tensor);
  }
  return std::nullopt;
}

std::size_t float_bytes(std::string_view dtype) {
  if (dtype == "F64") return 8;
  if (dtype == "F32") return 4;
  return dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

std::vector<float> to_floats(const HostTensor& tensor) {
  if (tensor.dtype == "F16") return convert<std::uint16_t>(tensor, from_float16);
  if (tensor.dtype == "BF16") return convert<std::uint16_t>(tensor, from_bfloat16);
  if (tensor.dtype == "F64") {
    return convert<double>(tensor, [](double value) { return static_cast<float>(value); });
  }
  LOCKSTEP_CHECK(tensor.dtype == "F32", "no floating-point type: ", tensor.dtype);
  return convert<float>(tensor, [](float value) { return value; });
}

}  // namespace lockstep
