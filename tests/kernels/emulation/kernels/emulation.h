#pragma once
// CUDA's execution model on one CPU thread, for tests: kernels/*.cu compiled as C++ run here as
// they are. Every thread of a block is a fibre with a stack of its own; fibres give way to others
// at barriers, warp operations and atomics, and which one goes on is drawn at random. A few blocks
// are under way at a time, in random order. Shared memory is allocated per block to the byte and
// filled with NaN. So a missing barrier, an unwritten read, a race between blocks or an access past
// the end gives wrong values in some order, or a report of AddressSanitizer. A kernel whose threads
// do not all reach a barrier is an error, not a hang.
//
// Stands in for <cuda_runtime.h> in kernels/primitives/launch.h. One thread at a time may launch.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "kernels/device/stream.h"
#include "kernels/dispatch.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

namespace lockstep::emulation {

/// Where the running fibre stands in its grid. CUDA's names below refer to it.
struct Position {
  uint3 thread{}, block{};
  dim3 block_size, grid_size;
};
extern const Position* position_of_running;
inline const Position& here() { return *position_of_running; }

/// What a launch does beside running the kernel.
struct Options {
  std::uint64_t seed = 0;    // of the order of threads
  int skipped_barrier = -1;  // the barrier (0: the first that a thread meets) left out by everyone
  int skipped_block = -1;    // the block (of x + y * grid.x + ...) that never runs
  bool only_last_block = false;  // of a grid
};
/// Of the launches that follow.
Options& options();
/// Barriers that the threads of the last launch met at most.
int barriers_of_last_launch();

/// Runs `thread` once per thread of the grid. Throws std::logic_error when threads wait for others
/// that have ended, when one of a `dependent` launch has not waited for the kernel before it by the
/// time it meets others or ends, and what `thread` throws.
void run(dim3 grid, dim3 block, const std::function<void()>& thread, bool dependent = false);

void wait_for_previous_kernel();

void sync_threads();
void give_way();
void* shared_memory(const std::type_info& type, std::size_t bytes, std::size_t alignment);
/// `mine` of every lane of this warp, [32]. Throws std::logic_error unless `mask` names them all.
const std::uint64_t* exchange_in_warp(unsigned mask, std::uint64_t mine);
int lane();

template <typename T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace lockstep::emulation

#define threadIdx (::lockstep::emulation::here().thread)
#define blockIdx (::lockstep::emulation::here().block)
#define blockDim (::lockstep::emulation::here().block_size)
#define gridDim (::lockstep::emulation::here().grid_size)

inline void __syncthreads() { lockstep::emulation::sync_threads(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  lockstep::emulation::exchange_in_warp(mask, 0);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const auto* lanes =
      lockstep::emulation::exchange_in_warp(mask, lockstep::emulation::to_bits(value));
  const int first = lockstep::emulation::lane() / width * width;
  return lockstep::emulation::from_bits<T>(lanes[first + source % width]);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const auto* lanes =
      lockstep::emulation::exchange_in_warp(mask, lockstep::emulation::to_bits(value));
  const int lane = lockstep::emulation::lane();
  const int other = lane ^ bits;
  return lockstep::emulation::from_bits<T>(lanes[other / width == lane / width ? other : lane]);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int by, int width = 32) {
  const auto* lanes =
      lockstep::emulation::exchange_in_warp(mask, lockstep::emulation::to_bits(value));
  const int lane = lockstep::emulation::lane();
  return lockstep::emulation::from_bits<T>(lanes[lane % width + by < width ? lane + by : lane]);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto* lanes = lockstep::emulation::exchange_in_warp(mask, predicate != 0 ? 1 : 0);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1U) != 0 && lanes[lane] != 0) votes |= 1U << lane;
  }
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask ? 1 : 0;
}

template <typename T>
T atomicAdd(T* address, T value) {
  lockstep::emulation::give_way();
  const T before = *address;
  *address = before + value;
  return before;
}
template <typename T>
T __ldg(const T* address) {
  return *address;
}
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;  // is not fused with what follows
  return product;
}
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

namespace lockstep::gpu {

template <typename T>
T& block_shared() {
  return *static_cast<T*>(emulation::shared_memory(typeid(T), sizeof(T), alignof(T)));
}

template <typename... Parameters, typename... Arguments>
void launch_dependent(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      Stream stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const auto work = [=, values = std::tuple<Parameters...>(static_cast<Parameters>(arguments)...)] {
    emulation::run(
        grid, block, [&] { std::apply(kernel, values); }, early);
  };
  if (emulation::dispatch() == nullptr) return work();
  emulation::dispatch()(stream, work, early);
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream,
            const Arguments&... arguments) {
  launch_dependent(false, kernel, grid, block, stream, arguments...);
}

/// Others come before and after.
inline unsigned increment_acq_rel(unsigned* counter, unsigned limit) {
  emulation::give_way();
  const unsigned before = *counter;
  *counter = before >= limit ? 0 : before + 1;
  emulation::give_way();
  return before;
}

inline void wait_for_previous_kernel() { emulation::wait_for_previous_kernel(); }
inline void allow_next_kernel() {}

}  // namespace lockstep::gpu
