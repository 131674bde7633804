#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "nn/graph/liveness.h"

namespace lockstep {
namespace {

std::size_t aligned(std::size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// When it is on the device.
std::array<Timeline::Span, 2> spans_of(const Buffer& buffer) {
  const Timeline::Span none{0, -1};
  if (!buffer.goes_away()) return {{{buffer.first, buffer.last}, none}};
  return {{{buffer.first, buffer.away_first - 1}, {buffer.away_last + 1, buffer.last}}};
}

bool alive_together(const Buffer& a, const Buffer& b) {
  for (const Timeline::Span& one : spans_of(a)) {
    for (const Timeline::Span& other : spans_of(b)) {
      if (std::max(one.first, other.first) <= std::min(one.last, other.last)) return true;
    }
  }
  return false;
}

// The tightest gap that holds `bytes` between the `taken` buffers, which are sorted by offset; else
// the end.
std::size_t best_gap(std::span<const Buffer* const> taken, std::size_t bytes) {
  std::size_t best = 0;
  std::size_t best_size = std::numeric_limits<std::size_t>::max();
  std::size_t end = 0;
  for (const Buffer* other : taken) {
    const std::size_t gap = other->offset > end ? other->offset - end : 0;
    if (gap >= bytes && gap < best_size) {
      best = end;
      best_size = gap;
    }
    end = std::max(end, other->offset + aligned(other->bytes));
  }
  return best_size == std::numeric_limits<std::size_t>::max() ? end : best;
}

// Places the buffers one after another; `offsets` takes the result.
std::size_t place_in_order(std::span<Buffer> buffers, std::span<const std::size_t> order) {
  std::vector<const Buffer*> placed;  // by offset
  std::vector<const Buffer*> taken;
  std::size_t peak = 0;
  const auto by_offset = [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; };
  for (const std::size_t index : order) {
    Buffer& buffer = buffers[index];
    taken.clear();
    std::copy_if(placed.begin(), placed.end(), std::back_inserter(taken),
                 [&](const Buffer* other) { return alive_together(*other, buffer); });
    buffer.offset = best_gap(taken, aligned(buffer.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer, by_offset), &buffer);
    peak = std::max(peak, buffer.offset + aligned(buffer.bytes));
  }
  return peak;
}

using Key = std::function<std::uint64_t(const Buffer&)>;  // larger is placed earlier

std::uint64_t lifetime(const Buffer& buffer) {
  std::uint64_t steps = 0;
  for (const Timeline::Span& span : spans_of(buffer)) {
    steps += static_cast<std::uint64_t>(span.last - span.first + 1);
  }
  return steps;
}

std::array<Key, 4> placing_orders() {
  return {[](const Buffer& b) { return b.bytes; },
          [](const Buffer& b) { return b.bytes * lifetime(b); },
          [](const Buffer& b) { return lifetime(b); },
          [](const Buffer& b) {
            return static_cast<std::uint64_t>(std::numeric_limits<int>::max() - b.first);
          }};
}

}  // namespace

std::size_t assign_offsets(std::span<Buffer> buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::vector<Buffer> best;
  std::size_t best_peak = std::numeric_limits<std::size_t>::max();
  for (const Key& key : placing_orders()) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return key(buffers[a]) > key(buffers[b]);
    });
    const std::size_t peak = place_in_order(buffers, order);
    if (peak >= best_peak) continue;
    best_peak = peak;
    best.assign(buffers.begin(), buffers.end());
  }
  std::copy(best.begin(), best.end(), buffers.begin());
  return buffers.empty() ? 0 : best_peak;
}

std::size_t largest_live_bytes(std::span<const Buffer> buffers) {
  std::size_t largest = 0;
  for (const Buffer& at : buffers) {
    for (const Timeline::Span& span : spans_of(at)) {  // the maximum is where some buffer begins
      if (span.last < span.first) continue;
      const Buffer then{.first = span.first, .last = span.first};
      std::size_t live = 0;
      for (const Buffer& other : buffers) {
        if (alive_together(other, then)) live += aligned(other.bytes);
      }
      largest = std::max(largest, live);
    }
  }
  return largest;
}

}  // namespace lockstep
