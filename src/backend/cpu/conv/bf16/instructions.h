#pragma once
// What a processor may multiply bf16 numbers by.

#include <cstdint>

namespace lockstep::bf16 {

enum class Instructions : std::uint8_t {
  kAny,         // of every processor: to test by
  kAvx512Bf16,  // VDPBF16PS
  kAmx,         // TDPBF16PS, on tiles
};

/// Whether this program, processor and operating system have them. Any thread.
bool usable(Instructions instructions);
/// The best of those that multiply bf16 faster than fp32; kAny where there are none.
Instructions best_instructions();

}  // namespace lockstep::bf16
