#pragma once
// Stacks of their own for threads that a test runs by itself, and switches between them. glibc's
// swapcontext asks the kernel for the signal mask at every switch, and AddressSanitizer, which
// intercepts it, clears what it knows of the whole stack: both would cost more than what most such
// threads do, and the latter hides overflows of arrays on the stack.

#include <cstddef>
#include <span>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace lockstep::test {

/// Where the code of a stack goes on. Made known to AddressSanitizer.
class FibreContext {
 public:
  /// Of the code that runs, until it is switched away from. May be of another thread each time.
  FibreContext() = default;
  FibreContext(const FibreContext&) = delete;
  FibreContext& operator=(const FibreContext&) = delete;

  /// The first switch to this context calls entry() on the stack of `bytes` (a multiple of 16) from
  /// `stack`. It must call arrived() first, and never return. Also for a stack whose code was left
  /// in its midst and does not go on.
  void start(void* stack, std::size_t bytes, void (*entry)());
  /// Leaves the running code here and goes on with `to`, until someone switches back.
  void switch_to(FibreContext& to);
  /// The first call on a new stack.
  void arrived();

#if defined(__x86_64__)
  /// Of code that was left: all that is on its stack, what the processor's registers held included.
  std::span<const std::byte> left_there() const {
    const auto* const top = static_cast<const std::byte*>(top_);
    return {top, static_cast<const std::byte*>(stack_) + bytes_};
  }
#endif

 private:
#if defined(__x86_64__)
  void* top_ = nullptr;  // of the stack, where the registers that calls preserve lie
#else
  ucontext_t machine_{};
#endif
  const void* stack_ = nullptr;
  std::size_t bytes_ = 0;
  FibreContext* left_ = nullptr;  // by the last switch to this one
  void* fake_stack_ = nullptr;    // AddressSanitizer's
};

}  // namespace lockstep::test
