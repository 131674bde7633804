#include "support/fibre_context.h"

#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
extern "C" void lockstep_switch_stack(void** from, void* to);
// Saves what a call preserves (System V ABI) on the stack that runs, and takes it from the other.
asm(R"(
.text
.type lockstep_switch_stack, @function
lockstep_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lockstep_switch_stack, . - lockstep_switch_stack
)");
#endif

namespace lockstep::test {

void FibreContext::start(void* stack, std::size_t bytes, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, bytes);  // of code that was left in its midst
#endif
  stack_ = stack;
  bytes_ = bytes;
  fake_stack_ = nullptr;
#if defined(__x86_64__)
  // Six registers, where `ret` goes, and the address that entry() would return to, behind which a
  // stack is aligned to 16 bytes.
  constexpr std::size_t kWords = 8;
  std::uintptr_t words[kWords] = {};
  words[6] = reinterpret_cast<std::uintptr_t>(entry);
  top_ = static_cast<std::byte*>(stack) + bytes - sizeof words;
  std::memcpy(top_, words, sizeof words);
#else
  getcontext(&machine_);
  machine_.uc_stack.ss_sp = stack;
  machine_.uc_stack.ss_size = bytes;
  machine_.uc_link = nullptr;
  makecontext(&machine_, entry, 0);
#endif
}

void FibreContext::switch_to(FibreContext& to) {
  to.left_ = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, to.stack_, to.bytes_);
#endif
#if defined(__x86_64__)
  lockstep_switch_stack(&top_, to.top_);
#else
  swapcontext(&machine_, &to.machine_);
#endif
  arrived();
}

void FibreContext::arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &left_->stack_, &left_->bytes_);
#endif
}

}  // namespace lockstep::test
