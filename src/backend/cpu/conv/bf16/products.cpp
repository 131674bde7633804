#include "backend/cpu/conv/bf16/products.h"

#if defined(__AVX512F__) && defined(__linux__)
#define LOCKSTEP_BF16_INSTRUCTIONS
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backend/cpu/simd.h"
#include "lockstep/core/check.h"

namespace lockstep::bf16 {
namespace {

using simd::load;
using simd::store;
using simd::unrolled;
using Vector = simd::Vec<kTile>;

float as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void multiply_any(const Block& block) {
  constexpr int kRows = 4;
  for (std::int64_t row = 0; row < block.row_tiles * kTile; row += kRows) {
    for (int tile = 0; tile < block.column_tiles; ++tile) {
      const std::int64_t stride = block.c_stride;
      float* c = block.c + row * stride + tile * kTile;
      Vector sums[kRows] = {};
      for (int r = 0; block.add && r < kRows; ++r) sums[r] = load<kTile>(c + r * stride);
      for (std::int64_t step = 0; step < block.step_count; ++step) {
        const Number* a = block.a + row * block.a_stride + block.steps[step];
        const Number* b = block.b + (step * block.column_tiles + tile) * kTileNumbers;
        for (std::int64_t k = 0; k < kDepth; k += 2) {
          Words pair, low, high;
          std::memcpy(&pair, b + k * kTile, sizeof pair);
          low = pair << 16;
          high = pair & 0xFFFF0000U;
          Vector columns[2];
          std::memcpy(&columns[0], &low, sizeof low);
          std::memcpy(&columns[1], &high, sizeof high);
          for (int r = 0; r < kRows; ++r) {
            const Number* from = a + r * block.a_stride + k;
            sums[r] += as_float(std::uint32_t{from[0]} << 16) * columns[0];
            sums[r] += as_float(std::uint32_t{from[1]} << 16) * columns[1];
          }
        }
      }
      for (int r = 0; r < kRows; ++r) store<kTile>(c + r * stride, sums[r]);
    }
  }
}

#ifdef LOCKSTEP_BF16_INSTRUCTIONS

// Sixteen sums with two tiles of columns, or with one: more than the latency of the instruction.
template <int kColumnTiles>
[[gnu::target("avx512bf16")]] void multiply_avx512(const Block& block) {
  constexpr int kRows = kColumnTiles == 2 ? 8 : 16;
  for (std::int64_t row = 0; row < block.row_tiles * kTile; row += kRows) {
    const std::int64_t stride = block.c_stride;
    float* c = block.c + row * stride;
    __m512 sums[kRows][kColumnTiles];
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kColumnTiles; ++t) {
        sums[r][t] = block.add ? _mm512_loadu_ps(c + r * stride + t * kTile) : _mm512_setzero_ps();
      }
    }
    const Number* b = block.b;
    for (std::int64_t step = 0; step < block.step_count; ++step) {
      const Number* a = block.a + row * block.a_stride + block.steps[step];
      for (std::int64_t k = 0; k < kDepth; k += 2) {
        __m512bh columns[kColumnTiles];
        for (int t = 0; t < kColumnTiles; ++t) {
          columns[t] = (__m512bh)_mm512_loadu_si512(b + t * kTileNumbers + k * kTile);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          std::int32_t pair;
          std::memcpy(&pair, a + r * block.a_stride + k, sizeof pair);
          const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
          for (int t = 0; t < kColumnTiles; ++t) {
            sums[r][t] = _mm512_dpbf16_ps(sums[r][t], value, columns[t]);
          }
        }
      }
      b += kColumnTiles * kTileNumbers;
    }
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kColumnTiles; ++t) {
        _mm512_storeu_ps(c + r * stride + t * kTile, sums[r][t]);
      }
    }
  }
}

void multiply_avx512(const Block& block) {
  block.column_tiles == 2 ? multiply_avx512<2>(block) : multiply_avx512<1>(block);
}

// Tiles 0 to 3 are sums [row tile, column tile], 4 and 5 rows, 6 and 7 columns.
template <int kRowTiles, int kColumnTiles>
[[gnu::target("amx-tile,amx-bf16")]] void multiply_amx(const Block& block) {
  constexpr bool kTwoRows = kRowTiles == 2, kTwoColumns = kColumnTiles == 2;
  constexpr auto kBytes = std::int64_t{sizeof(float)};
  const std::int64_t c_stride = kBytes * block.c_stride;
  float *c0 = block.c, *c1 = block.c + kTile * block.c_stride;
  // GCC's intrinsics do not say that they read and write memory.
  __asm__ volatile("" ::: "memory");
  if (block.add) {
    _tile_loadd(0, c0, c_stride);
    if constexpr (kTwoColumns) _tile_loadd(1, c0 + kTile, c_stride);
    if constexpr (kTwoRows) _tile_loadd(2, c1, c_stride);
    if constexpr (kTwoRows && kTwoColumns) _tile_loadd(3, c1 + kTile, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::int64_t a_stride = block.a_stride * std::int64_t{sizeof(Number)};
  const Number* b = block.b;
  for (std::int64_t step = 0; step < block.step_count; ++step) {
    const Number* a = block.a + block.steps[step];
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, a_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoColumns) {
      _tile_loadd(7, b + kTileNumbers, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, a + kTile * block.a_stride, a_stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTwoRows && kTwoColumns) _tile_dpbf16ps(3, 5, 7);
    b += kColumnTiles * kTileNumbers;
  }
  _tile_stored(0, c0, c_stride);
  if constexpr (kTwoColumns) _tile_stored(1, c0 + kTile, c_stride);
  if constexpr (kTwoRows) _tile_stored(2, c1, c_stride);
  if constexpr (kTwoRows && kTwoColumns) _tile_stored(3, c1 + kTile, c_stride);
  __asm__ volatile("" ::: "memory");
}

void multiply_amx(const Block& block) {
  if (block.row_tiles == 2) {
    return block.column_tiles == 2 ? multiply_amx<2, 2>(block) : multiply_amx<2, 1>(block);
  }
  block.column_tiles == 2 ? multiply_amx<1, 2>(block) : multiply_amx<1, 1>(block);
}

/// Intel's palette 1: eight tiles of up to 16 rows of 64 bytes. All are whole here.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

[[gnu::target("amx-tile")]] void begin_amx() {
  static const TileConfiguration configuration;
  _tile_loadconfig(&configuration);
}

[[gnu::target("amx-tile")]] void end_amx() { _tile_release(); }

/// Linux gives a process the tiles' state when it asks for it (arch_prctl(2)).
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

}  // namespace

bool usable(Instructions instructions) {
#ifdef LOCKSTEP_BF16_INSTRUCTIONS
  static const bool avx512 = __builtin_cpu_supports("avx512bf16");
  static const bool amx = __builtin_cpu_supports("amx-bf16") && ask_for_tiles();
  if (instructions == Instructions::kAvx512Bf16) return avx512;
  if (instructions == Instructions::kAmx) return amx;
#endif
  return instructions == Instructions::kAny;
}

Instructions best_instructions() {
  for (const Instructions each : {Instructions::kAmx, Instructions::kAvx512Bf16}) {
    if (usable(each)) return each;
  }
  return Instructions::kAny;
}

Products::Products(Instructions instructions)
    : instructions_(instructions), multiply_(multiply_any) {
  LOCKSTEP_CHECK(usable(instructions), "this processor has no such products of bf16 numbers");
#ifdef LOCKSTEP_BF16_INSTRUCTIONS
  if (instructions == Instructions::kAvx512Bf16) multiply_ = multiply_avx512;
  if (instructions == Instructions::kAmx) {
    multiply_ = multiply_amx;
    begin_amx();
  }
#endif
}

Products::~Products() {
#ifdef LOCKSTEP_BF16_INSTRUCTIONS
  if (instructions_ == Instructions::kAmx) end_amx();
#endif
}

}  // namespace lockstep::bf16
