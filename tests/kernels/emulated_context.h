#pragma once
// What tests of single kernels need: a context over host memory, and conditions of the emulation.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "kernels/primitives/context.h"
#include "kernels/primitives/launch.h"
#include "lockstep/backend/backend.h"

namespace lockstep::test {

/// A context of a GPU with this many multiprocessors. Its device memory is the host's, so that the
/// operands of the CPU's backend are operands of the kernels too.
class EmulatedContext {
 public:
  explicit EmulatedContext(int multiprocessors = 3) : counters_(gpu::Context::kCounters) {
    context_.multiprocessors = multiprocessors;
    context_.counters = counters_.data();
    context_.scratch = [this](std::size_t bytes) { return renew(scratch_, bytes); };
    context_.sums = [this](std::size_t bytes) { return renew(sums_, bytes); };
  }
  EmulatedContext(const EmulatedContext&) = delete;
  EmulatedContext& operator=(const EmulatedContext&) = delete;

  operator const gpu::Context&() const { return context_; }
  std::vector<unsigned>& counters() { return counters_; }
  void use_dependent_launches() { context_.dependent_launches = true; }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Release {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  using Block = std::unique_ptr<void, Release>;

  /// A new block each time, unset as on a GPU, so that reads past its end or of the last one show.
  static void* renew(Block& block, std::size_t bytes) {
    block.reset(::operator new(bytes, kAlignment));
    std::memset(block.get(), 0xFF, bytes);
    return block.get();
  }

  gpu::Context context_;
  std::vector<unsigned> counters_;
  Block scratch_, sums_;
};

/// Options of the emulation for the life time of the object.
struct WithOptions {
  explicit WithOptions(const emulation::Options& options) { emulation::options() = options; }
  ~WithOptions() { emulation::options() = {}; }
  WithOptions(const WithOptions&) = delete;
  WithOptions& operator=(const WithOptions&) = delete;
};

/// Whether run() gives another result than `expected`, or hangs, when `fault` is planted, in some
/// of a few orders of threads.
template <typename Run, typename Result>
bool is_seen(emulation::Options fault, const Result& expected, const Run& run) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    fault.seed = seed;
    const WithOptions planted(fault);
    try {
      if (!(run() == expected)) return true;  // NaN is another result as well
    } catch (const std::logic_error&) {
      return true;
    }
  }
  return false;
}

/// CHECKs that run(context) gives `expected` on GPUs of several sizes in several orders of threads.
template <typename Run, typename Result>
void check_in_all_orders(const Result& expected, const Run& run) {
  for (const int multiprocessors : {1, 5}) {
    for (const std::uint64_t seed : {1, 2}) {
      CAPTURE(multiprocessors);
      CAPTURE(seed);
      const WithOptions order({.seed = seed});
      const EmulatedContext context(multiprocessors);
      CHECK(run(context) == expected);
    }
  }
}

inline std::unique_ptr<Backend> cpu_backend() { return make_backend(Device{}, 1); }

}  // namespace lockstep::test
