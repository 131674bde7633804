#pragma once
// Intel's instructions for products of bf16 numbers, computed one number after another by what they
// are defined to do (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2): as
// far as backend/cpu/conv/bf16/products.cpp uses them, on processors that lack them.

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace lockstep::test::emulated {

typedef float Floats __attribute__((vector_size(64)));
typedef std::int32_t Ints __attribute__((vector_size(64)));
typedef std::uint16_t Numbers __attribute__((vector_size(64)));

template <typename Vector>
Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline float value_of(std::uint16_t number) {
  const std::uint32_t bits = std::uint32_t{number} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// VDPBF16PS: each sum gets the product of the odd numbers of its pair, then that of the even ones.
inline Floats dot(Floats sums, Numbers a, Numbers b) {
  for (int i = 0; i < 16; ++i) {
    sums[i] += value_of(a[2 * i + 1]) * value_of(b[2 * i + 1]);
    sums[i] += value_of(a[2 * i]) * value_of(b[2 * i]);
  }
  return sums;
}

/// Eight tiles of up to 16 rows of 64 bytes, which are there between LDTILECFG and
/// TILERELEASE.
struct Tiles {
  bool configured = false;
  int rows[8] = {}, row_bytes[8] = {};
  alignas(64) std::byte memory[8][16][64] = {};

  void configure(const void* from) {
    std::uint8_t bytes[64];
    std::memcpy(bytes, from, sizeof bytes);
    for (int tile = 0; tile < 8; ++tile) {
      row_bytes[tile] = bytes[16 + 2 * tile] + 256 * bytes[17 + 2 * tile];
      rows[tile] = bytes[48 + tile];
      if (rows[tile] > 16 || row_bytes[tile] > 64) throw std::logic_error("too large a tile");
    }
    if (bytes[0] != 1) throw std::logic_error("AMX has palette 1 alone");
    configured = true;
  }
  void release() { configured = false; }

  std::byte (&at(int tile))[16][64] {
    if (!configured) throw std::logic_error("there are no tiles before their configuration");
    return memory[tile];
  }
  void zero(int tile) { std::memset(at(tile), 0, sizeof memory[tile]); }
  void load(int tile, const void* from, std::int64_t stride) {
    zero(tile);
    for (int row = 0; row < rows[tile]; ++row) {
      std::memcpy(at(tile)[row], static_cast<const std::byte*>(from) + row * stride,
                  static_cast<std::size_t>(row_bytes[tile]));
    }
  }
  void store(int tile, void* to, std::int64_t stride) {
    for (int row = 0; row < rows[tile]; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride, at(tile)[row],
                  static_cast<std::size_t>(row_bytes[tile]));
    }
  }
  /// TDPBF16PS: c[m][n] += a[m][pair k] . b[k][pair n].
  void add_product(int c, int a, int b) {
    for (int m = 0; m < rows[c]; ++m) {
      auto sums = emulated::load<Floats>(at(c)[m]);
      for (int k = 0; k < row_bytes[a] / 4; ++k) {
        Numbers pairs{};
        const auto left = emulated::load<Numbers>(at(a)[m]);
        for (int n = 0; n < 16; ++n) pairs[2 * n] = left[2 * k], pairs[2 * n + 1] = left[2 * k + 1];
        sums = dot(sums, pairs, emulated::load<Numbers>(at(b)[k]));
      }
      std::memcpy(at(c)[m], &sums, sizeof sums);
    }
  }
};

inline thread_local Tiles tiles;

/// Linux: a process may use the tiles' data (ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
inline long system_call(long, long request, long feature) {
  return request == 0x1023 && feature == 18 ? 0 : -1;
}

}  // namespace lockstep::test::emulated
