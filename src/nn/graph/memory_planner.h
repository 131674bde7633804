#pragma once
// Places buffers of known lifetimes in one arena: two buffers that are alive at a common step never
// overlap.

#include <cstddef>
#include <span>

namespace lockstep {

/// A block of memory that is alive from step `first` to step `last`, both included.
struct Buffer {
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
  std::size_t offset = 0;  // set by assign_offsets, a multiple of kBufferAlignment
};

inline constexpr std::size_t kBufferAlignment = 256;

/// Sets every buffer's offset and returns the bytes of the arena. Greedy, largest first and in a
/// few other orders, of which the smallest result is taken (Pisarchyk and Lee 2020, "Efficient
/// memory management for deep neural net inference").
std::size_t assign_offsets(std::span<Buffer> buffers);

/// The most bytes alive at one step: no assignment needs less.
std::size_t largest_live_bytes(std::span<const Buffer> buffers);

}  // namespace lockstep
