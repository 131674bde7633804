// In a file of its own: where the compiler sees both sides it takes `free` for a mismatch with
// `new`.

#include "support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> allocations{0};
std::atomic<std::size_t> largest{0};

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  for (std::size_t known = largest; known < bytes;) {
    if (largest.compare_exchange_weak(known, bytes)) break;
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep::test {

long allocation_count() { return allocations; }

std::size_t largest_allocation() { return largest.exchange(0); }

}  // namespace lockstep::test
