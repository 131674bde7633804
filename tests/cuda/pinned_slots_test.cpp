// Statistics for peers that cannot reach the device's memory: kernels write them to the host as
// well, and what they have not written is copied.

#include "kernels/transport/pinned_slots.h"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <vector>

#include "cuda/exchange_checks.h"
#include "cuda/fake_runtime.h"
#include "kernels/cuda_backend.h"

namespace lockstep::gpu {
namespace {

constexpr std::int64_t kFloats = 40;

/// The values of `slot` now, and how many copies were made for them.
struct Shown {
  std::vector<float> values;
  int copies = 0;
};

Shown show(PinnedSlots& slots, StreamBackend& backend, const float* slot) {
  const int before = fake_runtime::copies_to_pinned();
  const float* host = slots.show(slot, kFloats, backend.stream());
  backend.synchronize();
  return {{host, host + kFloats}, fake_runtime::copies_to_pinned() - before};
}

/// As a kernel does that writes both.
void write(PinnedSlots& slots, float* slot, std::int64_t floats, float value) {
  float* const host = slots.writes(slot, floats);
  for (std::int64_t i = 0; i < floats; ++i) slot[i] = value;
  for (std::int64_t i = 0; host != nullptr && i < floats; ++i) host[i] = value;
}

TEST_CASE("a slot that kernels write on the host as well is not copied") {
  fake_runtime::use({.devices = 1});
  StreamBackend backend({DeviceKind::kCuda, 0, 0});
  PinnedSlots slots(0);
  float* const slot = backend.values();
  const std::vector<float> one(kFloats, 1.0F), two(kFloats, 2.0F), three(kFloats, 3.0F);
  CHECK(slots.writes(slot, kFloats) == nullptr);  // nobody reads it yet
  write(slots, slot, kFloats, 1);
  Shown shown = show(slots, backend, slot);
  CHECK(shown.copies == 1);
  CHECK(shown.values == one);
  write(slots, slot, kFloats, 2);
  shown = show(slots, backend, slot);
  CHECK(shown.copies == 0);
  CHECK(shown.values == two);
  // In parts, one for each image.
  write(slots, slot, kFloats / 2, 3);
  write(slots, slot + kFloats / 2, kFloats / 2, 3);
  shown = show(slots, backend, slot);
  CHECK(shown.copies == 0);
  CHECK(shown.values == three);
  CHECK(slots.writes(slot + kFloats, 1) == nullptr);
}

TEST_CASE("what kernels have not written on the host is copied") {
  fake_runtime::use({.devices = 1});
  StreamBackend backend({DeviceKind::kCuda, 0, 0});
  PinnedSlots slots(0);
  float* const slot = backend.values();
  static_cast<void>(show(slots, backend, slot));
  const auto check_copied = [&] {
    const Shown shown = show(slots, backend, slot);
    CHECK(shown.copies == 1);
    CHECK(shown.values == std::vector<float>(slot, slot + kFloats));
  };
  for (std::int64_t i = 0; i < kFloats; ++i) slot[i] = 5;  // by a kernel that knows nothing of it
  check_copied();
  write(slots, slot, kFloats / 2, 6);  // a part of it
  check_copied();
  write(slots, slot, kFloats, 7);
  slots.forget(slot);
  for (std::int64_t i = 0; i < kFloats; ++i) slot[i] = 8;  // a fill of the slot behind the kernel
  check_copied();
}

TEST_CASE("a slot keeps its place, and one that outgrows it gets another") {
  fake_runtime::use({.devices = 1});
  StreamBackend backend({DeviceKind::kCuda, 0, 0});
  PinnedSlots slots(0);
  const float* first = slots.show(backend.values(), 10, backend.stream());
  const float* other = slots.show(backend.values() + 500, 10, backend.stream());
  CHECK(first != other);
  CHECK(slots.show(backend.values(), 10, backend.stream()) == first);
  CHECK(slots.show(backend.values(), 100, backend.stream()) != first);
  backend.synchronize();
}

TEST_CASE("fill and copy are no kernels that write slots") {
  fake_runtime::use({.devices = 1});
  CudaBackend backend({DeviceKind::kCuda, 0, 0});
  const auto slots = std::make_shared<PinnedSlots>(0);
  backend.write_slots_to(slots);
  const Storage memory = backend.allocate(2 * kFloats * sizeof(float));
  auto* const slot = static_cast<float*>(memory.data());
  const Tensor row(slot, Shape{1, kFloats}), other(slot + kFloats, Shape{1, kFloats});
  const auto copies = [&](const std::function<void()>& rewrite) {
    static_cast<void>(slots->show(slot, kFloats, backend.stream()));
    static_cast<void>(slots->writes(slot, kFloats));
    rewrite();
    const int before = fake_runtime::copies_to_pinned();
    static_cast<void>(slots->show(slot, kFloats, backend.stream()));
    backend.synchronize();
    return fake_runtime::copies_to_pinned() - before;
  };
  CHECK(copies([] {}) == 0);
  CHECK(copies([&] { backend.fill(row, 0); }) == 1);
  CHECK(copies([&] { backend.copy(other, row, false); }) == 1);
  CHECK(copies([&] { backend.copy(row, other, false); }) == 0);
}

}  // namespace
}  // namespace lockstep::gpu
