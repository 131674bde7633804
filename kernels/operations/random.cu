// Every number is a hash of its place (the finalizer of SplitMix64).

#include "kernels/operations/launchers.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/grid_loop.h"

namespace lockstep::gpu {
namespace {

__device__ float number_at(std::uint64_t place) {
  std::uint64_t value = place * 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<float>(value >> 40) * 0x1.0p-23F - 1;
}

template <typename T>
__global__ void fill_random_kernel(T* values, std::int64_t count, std::uint64_t first) {
  for (std::int64_t i = first_item(); i < count; i += item_stride()) {
    values[i] = from_float<T>(number_at(first + static_cast<std::uint64_t>(i)));
  }
}

}  // namespace

void fill_random(const Context& context, const Tensor& tensor, std::uint64_t seed) {
  LOCKSTEP_CHECK(tensor.dense(), "fill_random: expected a dense tensor, got ",
                 to_string(tensor.shape), " with row stride ", tensor.row_stride);
  with_element_type(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    const std::int64_t count = tensor.shape.elements();
    launch_loop(context, count, fill_random_kernel<T>, static_cast<T*>(tensor.data), count,
                (seed + 1) << 40);
  });
}

}  // namespace lockstep::gpu
