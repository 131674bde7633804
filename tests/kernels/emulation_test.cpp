// The emulation itself: right kernels give right results in every order of threads, and each kind
// of mistake it exists for is seen.

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/emulated_gpu.h"
#include "kernels/primitives/launch.h"

namespace lockstep {
namespace {

using gpu::block_shared;
using gpu::kWholeWarp;
using gpu::launch;
using gpu::launch_dependent;
using gpu::wait_for_previous_kernel;
using test::WithOptions;

constexpr unsigned kThreadsOfBlock = 96;

struct Sums {
  float warps[kThreadsOfBlock / 32];
};

// out[block] = sum of in[block * 96, ...).
void block_sum(const float* in, float* out) {
  Sums& shared = block_shared<Sums>();
  float sum = in[blockIdx.x * kThreadsOfBlock + threadIdx.x];
  for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, bits);
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (const float part : shared.warps) total += part;
  out[blockIdx.x] = total;
}

void half_arrive(int* out) {
  if (threadIdx.x < kThreadsOfBlock / 2) __syncthreads();
  out[threadIdx.x] = 1;
}

struct Ticket {
  bool last;
};

// The block that comes last adds up what all have written.
void last_block_sum(const float* in, float* parts, unsigned* counter, float* out) {
  Ticket& shared = block_shared<Ticket>();
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = in[blockIdx.x];
    shared.last = gpu::increment_acq_rel(counter, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!shared.last || threadIdx.x != 0) return;
  *out = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) *out += parts[b];
}

void count_unsafely(int* counter) {
  const int before = *counter;
  __syncwarp();
  *counter = before + 1;
}

std::vector<float> ascending(std::size_t size) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

std::vector<float> block_sums() {
  const std::vector<float> in = ascending(5 * kThreadsOfBlock);
  std::vector<float> out(5);
  launch(block_sum, 5, kThreadsOfBlock, nullptr, in.data(), out.data());
  return out;
}

TEST_CASE("barriers, shuffles and shared memory work in every order of threads") {
  std::vector<float> expected;
  for (int block = 0; block < 5; ++block) {
    const float first = static_cast<float>(block * 96 + 1);
    expected.push_back(96 * first + 95 * 48);
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const WithOptions order({.seed = seed});
    CHECK(block_sums() == expected);
    CHECK(emulation::barriers_of_last_launch() == 1);
  }
}

TEST_CASE("a removed barrier shows as a value never written") {
  const WithOptions broken({.seed = 1, .skipped_barrier = 0});
  int wrong = 0;
  for (const float sum : block_sums()) wrong += std::isnan(sum) ? 1 : 0;
  CHECK(wrong > 0);
}

TEST_CASE("a block that never runs leaves its result alone") {
  const WithOptions broken({.skipped_block = 3});
  CHECK(block_sums()[3] == 0.0F);
}

TEST_CASE("threads that do not all reach a barrier are an error, not a hang") {
  std::vector<int> out(kThreadsOfBlock);
  CHECK_THROWS_WITH_AS(launch(half_arrive, 1, kThreadsOfBlock, nullptr, out.data()),
                       doctest::Contains("48 threads wait at __syncthreads"), std::logic_error);
  CHECK(block_sums().size() == 5);  // and the next kernel runs
}

TEST_CASE("the last block sees what the others wrote, whichever it is") {
  const std::vector<float> in = ascending(40);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const WithOptions order({.seed = seed});
    std::vector<float> parts(40, NAN);
    unsigned counter = 0;
    float out = 0;
    launch(last_block_sum, 40, 32, nullptr, in.data(), parts.data(), &counter, &out);
    CHECK(out == 820.0F);
    CHECK(counter == 0);
  }
}

void wait_late(float* out) {
  __syncthreads();
  wait_for_previous_kernel();
  *out = 1;
}

void wait_sometimes(float* out) {
  if (threadIdx.x != 5) wait_for_previous_kernel();
  *out = 1;
}

void wait_first(float* out) {
  wait_for_previous_kernel();
  __syncthreads();
  *out = 1;
}

TEST_CASE("a kernel that starts early must wait before it does anything") {
  float out = 0;
  launch_dependent(true, wait_first, 2, kThreadsOfBlock, nullptr, &out);
  CHECK(out == 1);
  for (const auto kernel : {wait_late, wait_sometimes}) {
    launch_dependent(false, kernel, 2, kThreadsOfBlock, nullptr, &out);
    CHECK_THROWS_WITH_AS(launch_dependent(true, kernel, 2, kThreadsOfBlock, nullptr, &out),
                         doctest::Contains("without waiting for the kernel before"),
                         std::logic_error);
  }
}

TEST_CASE("a race loses updates") {
  int counter = 0;
  launch(count_unsafely, 1, 64, nullptr, &counter);
  CHECK(counter < 64);
}

}  // namespace
}  // namespace lockstep
