#pragma once
// What is said where a device or the host has no more memory: how much, for what, what to do.

#include "lockstep/core/check.h"

namespace lockstep {

/// A device has no more memory. Exit code 1.
class MemoryError : public Error {
 public:
  using Error::Error;
};

/// What to do.
inline constexpr const char* kMemoryAdvice =
    "use smaller images or crops, a smaller batch or a smaller model";

/// From now on std::bad_alloc, of this process's operator new, says how much memory the process
/// has, what limits it and what to do.
void explain_bad_alloc();

}  // namespace lockstep
