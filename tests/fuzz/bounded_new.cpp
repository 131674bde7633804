// In a file of its own: where the compiler sees both sides it takes `free` for a mismatch with
// `new`.

#include <algorithm>
#include <cstdlib>
#include <new>

// Far above what any input of a few kilobytes may need: a length that a file claims is not to be
// believed.
constexpr std::size_t kMostBytes = std::size_t{300} << 20;

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return bytes > kMostBytes ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1));
}
void* operator new(std::size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
