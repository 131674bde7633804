// The count of blocks that ends a reduction, with blocks so small that a missing barrier shows:
// which block is last, and that it sees what all others wrote.

#include "kernels/primitives/reduce.h"

#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace lockstep::gpu {
namespace {

constexpr int kThreads = 32;
constexpr int kBlocks = 7;

// out[t] = sum over blocks of 100 * block + t. One thread lags far behind.
void sum_over_blocks(float* partials, unsigned* counter, float* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  if (block == 2 && thread == 20) {
    for (int i = 0; i < 500; ++i) emulation::give_way();
  }
  partials[block * kThreads + thread] = static_cast<float>(100 * block + thread);
  if (!arrives_last(counter, gridDim.x)) return;
  float sum = 0;
  for (int b = 0; b < kBlocks; ++b) sum += partials[b * kThreads + thread];
  out[thread] = sum;
}

bool sums_are_right(const emulation::Options& options) {
  std::vector<float> partials(kThreads * kBlocks, NAN), out(kThreads, NAN);
  unsigned counter = 0;
  emulation::options() = options;
  try {
    launch(sum_over_blocks, kBlocks, kThreads, nullptr, partials.data(), &counter, out.data());
  } catch (const std::logic_error&) {
    counter = 1;
  }
  emulation::options() = {};
  bool right = counter == 0;
  for (int t = 0; t < kThreads; ++t) {
    right = right && out[static_cast<std::size_t>(t)] == static_cast<float>(2100 + kBlocks * t);
  }
  return right;
}

TEST_CASE("the last block sees what all blocks wrote") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) CHECK(sums_are_right({.seed = seed}));
  CHECK(emulation::barriers_of_last_launch() == 2);
}

TEST_CASE("both barriers around the count of blocks are needed, and every block") {
  for (const int barrier : {0, 1}) {
    CAPTURE(barrier);
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      wrong += sums_are_right({.seed = seed, .skipped_barrier = barrier}) ? 0 : 1;
    }
    CHECK(wrong > 0);
  }
  for (int block = 0; block < kBlocks; ++block) CHECK(!sums_are_right({.skipped_block = block}));
}

}  // namespace
}  // namespace lockstep::gpu
