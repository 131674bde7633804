// The storage types of kernels: every value survives, and rounding is to the nearest, ties to even.

#include "kernels/primitives/element.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/primitives/pack.h"
#include "support/storage_type.h"

namespace lockstep::gpu {
namespace {

template <typename T>
float value_of(std::uint32_t bits) {
  return to_float(T{static_cast<std::uint16_t>(bits)});
}

template <typename T>
void check_conversions(std::uint16_t infinity) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const float value = value_of<T>(bits);
    const bool nan = (bits & 0x7fffU) > infinity;
    REQUIRE(std::isnan(value) == nan);
    REQUIRE(from_float<T>(value).bits == (nan ? 0x7fff : bits));
  }
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {  // between two neighbours
    const float low = value_of<T>(bits), high = value_of<T>(bits + 1);
    const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
    const float below = std::nextafter(middle, low), above = std::nextafter(middle, high);
    for (const float sign : {1.0F, -1.0F}) {
      const std::uint32_t minus = sign < 0 ? 0x8000U : 0U;
      REQUIRE(from_float<T>(sign * below).bits == (bits | minus));
      REQUIRE(from_float<T>(sign * middle).bits == ((bits + (bits & 1U)) | minus));
      REQUIRE(from_float<T>(sign * above).bits == ((bits + 1) | minus));
    }
  }
  CHECK(from_float<T>(std::numeric_limits<float>::max()).bits == infinity);
  CHECK(from_float<T>(-std::numeric_limits<float>::infinity()).bits == (infinity | 0x8000));
}

TEST_CASE("bf16 converts to and from fp32") { check_conversions<BFloat16>(0x7f80); }

TEST_CASE("fp16 converts to and from fp32") {
  check_conversions<Float16>(0x7c00);
  CHECK(to_float(from_float<Float16>(65519.0F)) == 65504.0F);
  CHECK(std::isinf(to_float(from_float<Float16>(65520.0F))));
}

template <typename T>
void check_packs() {
  constexpr int kSize = kPackWidth<T>;
  alignas(16) T memory[kSize + 1];
  for (int i = 0; i <= kSize; ++i) memory[i] = from_float<T>(static_cast<float>(i + 1));
  const auto whole = load_elements<true>(memory, kSize);
  const auto part = load_elements<false>(memory + 1, kSize - 1);
  for (int i = 0; i < kSize; ++i) {
    CHECK(whole[i] == static_cast<float>(i + 1));
    CHECK(part[i] == (i < kSize - 1 ? static_cast<float>(i + 2) : 0.0F));
  }
  Pack<T> changed = whole;
  changed.set(1, from_float<T>(-8.0F));
  store_elements<true>(memory, changed, kSize);
  store_elements<false>(memory + kSize - 1, changed, 2);
  CHECK(to_float(memory[0]) == 1.0F);
  CHECK(to_float(memory[1]) == -8.0F);
  CHECK(to_float(memory[kSize - 1]) == 1.0F);
  CHECK(to_float(memory[kSize]) == -8.0F);
}

TEST_CASE("packs load and store at once or one by one") {
  check_packs<float>();
  check_packs<BFloat16>();
  check_packs<Float16>();
}

template <typename T, int kWidth>
void check_lanes() {
  alignas(16) T memory[2 * kWidth] = {};
  float values[kWidth], read[kWidth];
  for (int i = 0; i < kWidth; ++i) values[i] = static_cast<float>(3 * i - 7);
  store_rounded(memory + kWidth, values);
  for (int i = 0; i < kWidth; ++i) {
    CHECK(to_float(memory[i]) == 0.0F);
    CHECK(to_float(memory[kWidth + i]) == values[i]);
  }
  load_values(memory + kWidth, read);
  for (int i = 0; i < kWidth; ++i) CHECK(read[i] == values[i]);
}

TEST_CASE("packs of every width keep the order of their elements") {
  check_lanes<float, 1>();
  check_lanes<float, 4>();
  check_lanes<BFloat16, 1>();
  check_lanes<BFloat16, 4>();
  check_lanes<BFloat16, 8>();
  check_lanes<Float16, 8>();
  alignas(8) std::uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  auto pack = load_pack<8>(bytes);
  for (int i = 0; i < 8; ++i) CHECK(pack.element(i) == i + 1);
  pack.set(5, 255);
  store_pack(bytes, pack);
  CHECK(bytes[4] == 5);
  CHECK(bytes[5] == 255);
  CHECK(bytes[6] == 7);
}

template <typename T>
void check_storage_type(DType dtype) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = to_float(T{half});
    if (std::isnan(value)) continue;
    REQUIRE(test::from_bits(dtype, half) == value);
    REQUIRE(test::to_bits(dtype, value) == half);
    const float other = std::nextafter(value, 1.0F) * 1.001F;
    if (!std::isfinite(to_float(from_float<T>(other)))) continue;
    REQUIRE(test::stored(dtype, other) == to_float(from_float<T>(other)));
  }
}

TEST_CASE("the tests' own definition of the types agrees with the kernels'") {
  check_storage_type<BFloat16>(DType::kBFloat16);
  check_storage_type<Float16>(DType::kFloat16);
}

}  // namespace
}  // namespace lockstep::gpu
