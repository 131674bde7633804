// Memory of a backend and the choice of the backend itself.

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <string>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "support/backends.h"

namespace lockstep::test {

TEST_CASE("allocations are aligned, zeroed, counted and given back") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const std::size_t before = backend.allocated_bytes();
    {
      const Storage storage = backend.allocate(1000);
      const Storage empty = backend.allocate(0);
      CHECK(storage.bytes() == 1000);
      CHECK(reinterpret_cast<std::uintptr_t>(storage.data()) % 256 == 0);
      CHECK(backend.allocated_bytes() >= before + 1000);
      std::vector<std::uint8_t> bytes(1000, 1);
      backend.download(bytes.data(), Tensor(storage.data(), {1, 1000}, DType::kUInt8));
      backend.synchronize();
      CHECK(std::accumulate(bytes.begin(), bytes.end(), 0) == 0);
    }
    CHECK(backend.allocated_bytes() == before);
    const std::size_t peak = backend.peak_allocated_bytes();
    CHECK(peak >= before + 1000);
    const Storage smaller = backend.allocate(500);
    CHECK(backend.peak_allocated_bytes() == peak);
    const Storage larger = backend.allocate(peak);
    CHECK(backend.peak_allocated_bytes() == backend.allocated_bytes());
  }
}

TEST_CASE("memory may outlive its backend") {
  auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  Storage storage = backend->allocate(64);
  backend.reset();
  static_cast<char*>(storage.data())[63] = 1;
  storage = Storage();
  CHECK(storage.data() == nullptr);
}

TEST_CASE("upload, fill and download round trip; strided tensors are refused") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Storage storage = backend.allocate(24 * sizeof(float));
    const Tensor tensor(storage.data(), {4, 6});
    std::vector<float> values(24), back(24);
    std::iota(values.begin(), values.end(), 1.0F);
    backend.upload(tensor, values.data());
    backend.fill(tensor.channel_range(2, 3), -1);
    backend.download(back.data(), tensor);
    backend.synchronize();
    for (std::size_t i = 0; i < 24; ++i) {
      CHECK(back[i] == (i % 6 >= 2 && i % 6 < 5 ? -1.0F : values[i]));
    }
    CHECK_THROWS_AS(backend.upload(tensor.channel_range(0, 2), values.data()), Error);
    CHECK_THROWS_AS(backend.download(back.data(), tensor.channel_range(0, 2)), Error);
  }
}

TEST_CASE("fill knows every element type") {
  for (NamedBackend& named : available_backends()) {
    const Storage storage = named.backend->allocate(16);
    std::uint8_t labels[3] = {};
    named.backend->fill(Tensor(storage.data(), {1, 3}, DType::kUInt8), 255);
    named.backend->download(labels, Tensor(storage.data(), {1, 3}, DType::kUInt8));
    std::uint16_t halves[2] = {};
    named.backend->fill(Tensor(storage.data(), {1, 2}, DType::kBFloat16), -1.5F);
    named.backend->download(halves, Tensor(storage.data(), {1, 2}, DType::kBFloat16));
    named.backend->synchronize();
    CHECK(labels[2] == 255);
    CHECK(halves[1] == 0xBFC0);
  }
}

TEST_CASE("scratch memory grows and then stays") {
  CpuContext cpu({DeviceKind::kCpu, 0, 0}, 1);
  cpu.scratch(1000);
  void* const grown = cpu.scratch(100000);
  const std::size_t bytes = cpu.allocated().now();
  CHECK(cpu.scratch(500) == grown);
  CHECK(cpu.allocated().now() == bytes);
}

TEST_CASE("a device without a backend is refused with a way out") {
  CHECK_THROWS_AS(make_backend({DeviceKind::kCpu, 0, 0}, 0), Error);
  if (cuda_device_count() > 0) {
    MESSAGE("SKIPPED: this build and machine have CUDA");
    return;
  }
  try {
    make_backend({DeviceKind::kCuda, 0, 0}, 1);
    FAIL("a CUDA backend was made");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("cuda:0: ") == 0);
    CHECK(std::string(error.what()).find("cpu:N") != std::string::npos);
  }
}

TEST_CASE("parallel_for covers every item once") {
  for (const std::int64_t count : {0, 1, 2, 5, 1000}) {
    for (const int threads : {1, 2, 3, 7}) {
      std::vector<int> visits(static_cast<std::size_t>(count));
      parallel_for(count, kElementsPerThread, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[i];
      });
      CHECK(visits == std::vector<int>(visits.size(), 1));
    }
  }
}

}  // namespace lockstep::test
