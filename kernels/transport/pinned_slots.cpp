#include "kernels/transport/pinned_slots.h"

#include <algorithm>
#include <iterator>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{256} << 10;
constexpr std::size_t kSlotAlignment = 256;

}  // namespace

PinnedSlots::Place* PinnedSlots::find(const float* memory, const float** begin) {
  auto next = places_.upper_bound(memory);
  if (next == places_.begin()) return nullptr;
  const auto found = std::prev(next);
  *begin = found->first;
  return memory < found->first + found->second.floats ? &found->second : nullptr;
}

float* PinnedSlots::writes(const float* slot, std::int64_t floats) {
  const float* begin = nullptr;
  Place* place = find(slot, &begin);
  if (place == nullptr || slot + floats > begin + place->floats) return nullptr;
  place->written += floats;
  return place->host + (slot - begin);
}

void PinnedSlots::forget(const void* memory) {
  const float* begin = nullptr;
  if (Place* place = find(static_cast<const float*>(memory), &begin)) place->written = 0;
}

const float* PinnedSlots::show(const float* slot, std::int64_t floats, Stream stream) {
  Place& place = places_[slot];
  if (place.floats < floats) place = {allocate(floats), floats, 0};
  if (place.written != floats) {
    check_cuda(cudaMemcpyAsync(place.host, slot, static_cast<std::size_t>(floats) * sizeof(float),
                               cudaMemcpyDefault, stream),
               "cudaMemcpyAsync of statistics to the host");
  }
  place.written = 0;
  return place.host;
}

// Peers may still read what was here before: nothing is freed.
float* PinnedSlots::allocate(std::int64_t floats) {
  const std::size_t bytes =
      (static_cast<std::size_t>(floats) * sizeof(float) + kSlotAlignment - 1) / kSlotAlignment *
      kSlotAlignment;
  if (blocks_.empty() || used_ + bytes > blocks_.back().bytes()) {
    blocks_.emplace_back(ordinal_, std::max(bytes, kBlockBytes));
    used_ = 0;
  }
  auto* place = static_cast<std::byte*>(blocks_.back().data()) + used_;
  used_ += bytes;
  return reinterpret_cast<float*>(place);
}

}  // namespace lockstep::gpu
