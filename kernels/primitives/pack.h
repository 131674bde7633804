#pragma once
// Packs: consecutive values that a thread loads and stores at once, and the loop over them that
// most kernels are. For .cu files only.

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/operations/context.h"
#include "kernels/primitives/launch.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Values of a pack where alignment and channels allow: 16 bytes of floats.
inline constexpr int kPackWidth = 4;
inline constexpr unsigned kPackThreads = 256;  // of a block

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

template <int kWidth, typename T>
__device__ Pack<T, kWidth> load_pack(const T* source) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(source);
}

/// To global memory.
template <int kWidth, typename T>
__device__ void store_pack(T* target, const Pack<T, kWidth>& pack) {
#if defined(__CUDACC__)
  // nvcc makes four stores of most plain assignments of 16 bytes.
  if constexpr (std::is_same_v<T, float> && kWidth == 4) {
    return __stwb(reinterpret_cast<float4*>(target),
                  make_float4(pack.values[0], pack.values[1], pack.values[2], pack.values[3]));
  }
#endif
  *reinterpret_cast<Pack<T, kWidth>*>(target) = pack;
}

/// The first of a thread's items in a loop shared by the grid, and from one to the next.
__device__ inline std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t item_stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// Blocks of kPackThreads for a loop over `items`: as many as run at the same time, at most.
inline unsigned blocks_for_items(const Context& context, std::int64_t items) {
  return blocks_for(items, kPackThreads, std::int64_t{8} * context.multiprocessors);
}

inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// Whether the channels of all these tensors may be taken in packs of kPackWidth.
inline bool allow_packs(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (tensor->shape.channels() % kPackWidth != 0 || tensor->row_stride % kPackWidth != 0 ||
        !is_aligned(tensor->data, kPackWidth * size_of(tensor->dtype))) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::gpu
