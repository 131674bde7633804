// Products by AVX512-BF16 and by AMX, on any x86-64 processor: the functions that a processor with
// these instructions runs, compiled once more with the instructions emulated.

#if defined(__x86_64__) && defined(__linux__)

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "backend/cpu/simd.h"
#include "backend/emulated_bf16.h"
#include "lockstep/core/check.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LOCKSTEP_BF16_INSTRUCTIONS
#define bf16 emulated_bf16  // the namespace: the program has its own
#define target(...) unused  // or the compiler would use them
#define syscall lockstep::test::emulated::system_call
#define __builtin_cpu_supports(...) true
#define __m512 lockstep::test::emulated::Floats
#define __m512bh lockstep::test::emulated::Numbers
#define _mm512_setzero_ps() \
  lockstep::test::emulated::Floats {}
#define _mm512_loadu_ps(from) lockstep::test::emulated::load<lockstep::test::emulated::Floats>(from)
#define _mm512_storeu_ps(to, floats) std::memcpy(to, &(floats), 64)
#define _mm512_loadu_si512(from) \
  lockstep::test::emulated::load<lockstep::test::emulated::Ints>(from)
#define _mm512_set1_epi32(value) (lockstep::test::emulated::Ints{} + (value))
#define _mm512_dpbf16_ps lockstep::test::emulated::dot
#define _tile_loadconfig lockstep::test::emulated::tiles.configure
#define _tile_release lockstep::test::emulated::tiles.release
#define _tile_zero lockstep::test::emulated::tiles.zero
#define _tile_loadd lockstep::test::emulated::tiles.load
#define _tile_stored lockstep::test::emulated::tiles.store
#define _tile_dpbf16ps lockstep::test::emulated::tiles.add_product
#include "backend/cpu/conv/bf16/products.cpp"

namespace lockstep::emulated_bf16 {
namespace {

/// Whole numbers from -8 to 8, of which every sum here is exact.
std::vector<Number> small_numbers(std::int64_t count, std::uint32_t seed) {
  std::vector<Number> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    const float value = static_cast<float>(seed >> 16 & 15U) - 8;
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    numbers.push_back(static_cast<Number>(bits >> 16));
  }
  return numbers;
}

struct Problem {
  int row_tiles, column_tiles;
  std::vector<std::int64_t> steps;  // where in a row each step begins
  bool add;

  /// Sums, in rows with more between them, all of it.
  std::vector<float> sums(Instructions instructions) const {
    constexpr std::int64_t kRow = 3 * kDepth, kSumsRow = 2 * kTile + 5;
    const auto count = static_cast<std::int64_t>(steps.size());
    const std::vector<Number> a = small_numbers(2 * kTile * kRow + kDepth, 1);
    const std::vector<Number> b = small_numbers(count * column_tiles * kTileNumbers, 2);
    std::vector<float> c(static_cast<std::size_t>(2 * kTile * kSumsRow), 1.0F);
    Products(instructions)
        .multiply({.a = a.data(),
                   .a_stride = kRow,
                   .steps = steps.data(),
                   .step_count = count,
                   .b = b.data(),
                   .row_tiles = row_tiles,
                   .column_tiles = column_tiles,
                   .c = c.data(),
                   .c_stride = kSumsRow,
                   .add = add});
    return c;
  }
};

TEST_CASE("products by AVX512-BF16 and by AMX are those of any processor") {
  for (const int row_tiles : {1, 2}) {
    for (const int column_tiles : {1, 2}) {
      for (const bool add : {false, true}) {
        for (const auto& steps : {std::vector<std::int64_t>{0}, {32, 7, 64}}) {
          CAPTURE(row_tiles);
          CAPTURE(column_tiles);
          CAPTURE(add);
          CAPTURE(steps.size());
          const Problem problem{row_tiles, column_tiles, steps, add};
          const std::vector<float> expected = problem.sums(Instructions::kAny);
          CHECK(problem.sums(Instructions::kAvx512Bf16) == expected);
          CHECK(problem.sums(Instructions::kAmx) == expected);
        }
      }
    }
  }
  CHECK_FALSE(test::emulated::tiles.configured);  // the state is given back
}

}  // namespace
}  // namespace lockstep::emulated_bf16

#endif
