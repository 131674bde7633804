// Slots of several parts, one for each image, become one slot before the kernels that normalise or
// apply gradients read it: these round what they merge to fp32 first, so that it makes no
// difference to their bits. A thread merges a channel, part by part.

#include "backend/formulas.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/primitives/grid_loop.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {
namespace {

/// The slots that have rows.
struct Parts {
  int slots = 0;
  std::int64_t channels = 0;
  const float* data[kMaxStatSlots] = {};  // [parts, 2, C] each
  std::int64_t parts[kMaxStatSlots] = {};
  std::int64_t rows[kMaxStatSlots] = {};  // of one of its parts
};

struct Merged {
  double first = 0, second = 0;
};

struct Moments {
  std::int64_t before = 0;

  __device__ void add(Merged& all, double mean, double m2, std::int64_t rows) {
    if (before == 0) {
      all = {mean, m2};
    } else {
      join_moments(all.first, all.second, mean, m2, moments_weights(before, rows));
    }
    before += rows;
  }
};

struct Sums {
  __device__ void add(Merged& all, double sum, double product, std::int64_t) {
    all.first += sum;
    all.second += product;
  }
};

template <typename Rule>
__global__ void merge_kernel(Parts a, float* merged) {
  for (std::int64_t c = first_item(); c < a.channels; c += item_stride()) {
    Merged all;
    Rule rule;
    for (int slot = 0; slot < a.slots; ++slot) {
      const float* pair = a.data[slot] + c;
      for (std::int64_t part = 0; part < a.parts[slot]; ++part, pair += 2 * a.channels) {
        rule.add(all, pair[0], pair[a.channels], a.rows[slot]);
      }
    }
    merged[c] = static_cast<float>(all.first);
    merged[a.channels + c] = static_cast<float>(all.second);
  }
}

template <typename Rule>
StatSlot merge_slots(const Context& context, std::span<const StatSlot> slots,
                     std::int64_t channels) {
  Parts parts;
  parts.channels = channels;
  std::int64_t count = 0;
  for (const StatSlot& slot : slots) {
    if (slot.count == 0) continue;
    LOCKSTEP_CHECK(parts.slots < kMaxStatSlots, "batch_norm: at most ", kMaxStatSlots,
                   " slots with rows can be merged on a GPU, got more of ", slots.size(),
                   "; use process groups of fewer replicas (bn.sync_group)");
    parts.data[parts.slots] = slot.data;
    parts.parts[parts.slots] = slot.parts;
    parts.rows[parts.slots++] = slot.count / slot.parts;
    count += slot.count;
  }
  const auto bytes = 2 * static_cast<std::size_t>(channels) * sizeof(float);
  auto* merged = static_cast<float*>(context.scratch(bytes));
  launch_loop(context, channels, merge_kernel<Rule>, parts, merged);
  return {count, merged};
}

}  // namespace

StatSlot merge_moments(const Context& context, std::span<const StatSlot> slots,
                       std::int64_t channels) {
  return merge_slots<Moments>(context, slots, channels);
}

StatSlot merge_sums(const Context& context, std::span<const StatSlot> slots,
                    std::int64_t channels) {
  return merge_slots<Sums>(context, slots, channels);
}

}  // namespace lockstep::gpu
