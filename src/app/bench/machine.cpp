#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "app/bench/bench.h"
#include "backend/cpu_kernels.h"
#include "core/seconds_since.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

/// Additions that wait for one another, of which a core does one in a cycle: of a number that the
/// compiler does not know, as some processors add known ones ahead.
void add_in_turns(std::int64_t iterations) {
  std::int64_t sum = 0, step = 1;
  asm volatile("" : "+r"(step));
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < iterations; ++i) {
    sum += step;
    asm volatile("" : "+r"(sum));
  }
}

/// The least that `work` takes in a few stretches of 50 ms. Of shorter ones the least may be too
/// little: the clock of a virtual machine stands still now and then. They go on for long enough
/// that every thread has come to a core of its own.
double least_seconds(const std::function<void()>& work) {
  constexpr double kSeconds = 0.05;
  constexpr int kStretches = 16;
  work();  // its threads and its memory are new
  double least = std::numeric_limits<double>::infinity();
  for (int stretch = 0; stretch < kStretches; ++stretch) {
    const auto start = std::chrono::steady_clock::now();
    int runs = 0;
    double seconds = 0;
    for (; seconds < kSeconds; seconds = seconds_since(start)) {
      work();
      ++runs;
    }
    least = std::min(least, seconds / runs);
  }
  return least;
}

/// The same of `work` on all of `threads`.
double least_seconds(int threads, const std::function<void(int)>& work) {
  return least_seconds([&] {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < threads; ++i) work(i);
  });
}

constexpr std::int64_t kGpuCopyBytes = std::int64_t{256} << 20;
constexpr int kGpuCopiesAtOnce =
    16;  // the time of one is then the device's, not that of its launch

}  // namespace

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return seconds_since(start);
}

std::string format_percentiles(const Percentiles& values, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", values.median, digits, values.p10, digits,
                     values.p90, digits);
}

Json percentiles_json(const Percentiles& values) {
  return {{"median", values.median}, {"p10", values.p10}, {"p90", values.p90}, {"n", values.count}};
}

std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::vector<Device> bench_devices(const BenchArguments& arguments) {
  const std::string& devices = arguments.common.devices;
  return parse_devices(devices_or_default(devices));
}

std::int64_t beyond_caches_bytes() {
  const std::int64_t cache = std::max<std::int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp<std::int64_t>(4 * cache, std::int64_t{128} << 20, std::int64_t{256} << 20);
}

void copy_tensor(Backend& backend, const Tensor& from, const Tensor& to) {
  if (backend.device().kind != DeviceKind::kCpu) return backend.copy(from, to, false);
  const auto threads = static_cast<std::size_t>(threads_per_replica(1));
  const std::size_t piece =
      static_cast<std::size_t>(from.shape.elements()) * size_of(from.dtype) / threads;
#pragma omp parallel for num_threads(threads_per_replica(1)) schedule(static)
  for (std::size_t i = 0; i < threads; ++i) {
    std::memcpy(static_cast<char*>(to.data) + i * piece,
                static_cast<const char*>(from.data) + i * piece, piece);
  }
}

double copy_bandwidth(Backend& backend) {
  const bool cpu = backend.device().kind == DeviceKind::kCpu;
  const std::int64_t bytes = cpu ? beyond_caches_bytes() : kGpuCopyBytes;
  const int at_once = cpu ? 1 : kGpuCopiesAtOnce;
  const Storage memory = backend.allocate(static_cast<std::size_t>(2 * bytes + kGapBytes));
  const Shape shape{1, bytes / std::int64_t{sizeof(float)}};
  const Tensor from(memory.data(), shape);
  const Tensor to(static_cast<std::byte*>(memory.data()) + bytes + kGapBytes, shape);
  const double seconds = least_seconds([&] {
    for (int k = 0; k < at_once; ++k) copy_tensor(backend, from, to);
    backend.synchronize();
  });
  return 2 * static_cast<double>(bytes * at_once) / seconds;
}

double peak_flops(int threads) {
  constexpr std::int64_t kIterations = 300'000;  // 1 to 3 ms
  std::atomic<std::int64_t> flops = 0;           // of a thread
  const double seconds =
      least_seconds(threads, [&](int) { flops = cpu_kernels().multiply_add(kIterations); });
  return static_cast<double>(flops * threads) / seconds;
}

double clock_hertz(int threads) {
  constexpr std::int64_t kIterations = 5'000'000;  // 1 to 2 ms
  const double seconds = least_seconds(threads, [](int) { add_in_turns(kIterations); });
  return static_cast<double>(kIterations) / seconds;
}

}  // namespace lockstep
