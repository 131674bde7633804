#pragma once
// Eight floats, in the vector extension that GCC and Clang share: registers of the machine where it
// has them (one with AVX, two with NEON), and no intrinsics of one architecture. Products that are
// added contract to fused multiply-adds under the compilers' defaults, so sums are reproducible per
// build, not across builds.

#include <cstdint>
#include <cstring>
#include <utility>

namespace lockstep::winograd {

inline constexpr std::int64_t kLanes = 8;
inline constexpr std::int64_t kLine = 16;  // floats of a cache line
typedef float Vec __attribute__((vector_size(32)));

inline Vec load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }

/// The first `count` lanes from memory, zeros in the others.
inline Vec load_partial(const float* from, std::int64_t count) {
  Vec v{};
  std::memcpy(&v, from, static_cast<std::size_t>(count) * sizeof(float));
  return v;
}

inline void store_partial(float* to, Vec v, std::int64_t count) {
  std::memcpy(to, &v, static_cast<std::size_t>(count) * sizeof(float));
}

/// body(0), body(1), ... body(kCount - 1), without a loop: sums indexed by constants live in
/// registers, also where the compiler deems a loop over them too long to unroll.
template <int kCount, class Body>
[[gnu::always_inline]] inline void unrolled(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body(kIndex), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace lockstep::winograd
