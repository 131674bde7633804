#include "core/memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace lockstep {
namespace {

constexpr unsigned long kMegabyte = 1UL << 20;

/// Says what it says without memory from the heap.
class ExplainedBadAlloc : public std::bad_alloc {
 public:
  ExplainedBadAlloc(unsigned long held, unsigned long limit) {
    std::array<char, 64> of_limit{};
    if (limit > 0)
      std::snprintf(of_limit.data(), of_limit.size(), " of the %lu MB that ulimit -v allows",
                    limit);
    std::snprintf(text_.data(), text_.size(),
                  "the host has no memory for it beside the %lu MB of this process%s; %s", held,
                  of_limit.data(), kMemoryAdvice);
  }
  const char* what() const noexcept override { return text_.data(); }

 private:
  std::array<char, 256> text_{};
};

/// Of address space, in MB; 0: not known.
unsigned long held_megabytes() {
  std::array<char, 64> text{};
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const bool read_some = read(file, text.data(), text.size() - 1) > 0;
  close(file);
  const auto page = static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
  return read_some ? std::strtoul(text.data(), nullptr, 10) * page / kMegabyte : 0;
}

/// Of address space, in MB; 0: none.
unsigned long limit_megabytes() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? limit.rlim_cur / kMegabyte : 0;
}

}  // namespace

void explain_bad_alloc() {
  std::set_new_handler([] { throw ExplainedBadAlloc(held_megabytes(), limit_megabytes()); });
}

}  // namespace lockstep
