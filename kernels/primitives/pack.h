#pragma once
// Packs: elements that follow one another and that a thread loads and stores at once, 16 bytes of
// them where alignment and channels allow. In memory they have any element type; arithmetic takes
// them as fp32. For .cu files only.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/primitives/element.h"
#include "kernels/primitives/launch.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Elements of 16 bytes.
template <typename T>
inline constexpr int kPackWidth = 16 / static_cast<int>(sizeof(T));

/// Made of words: out of these nvcc takes narrow elements by shifts, where it would spend a
/// register on every element of an array, and it stores them all at once, where it would store
/// floats one by one.
template <typename T, int kWidth = kPackWidth<T>>
struct [[gnu::may_alias]] alignas(sizeof(T) * kWidth) Pack {
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * kWidth;
  using Word = std::conditional_t<kBytes == 1, std::uint8_t,
                                  std::conditional_t<kBytes == 2, std::uint16_t, std::uint32_t>>;
  using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
  static constexpr int kPerWord = static_cast<int>(sizeof(Word) / sizeof(T));

  Word words[kWidth / kPerWord];

  __device__ float operator[](int i) const { return to_float(element(i)); }
  __device__ T element(int i) const {
    return std::bit_cast<T>(static_cast<Bits>(words[i / kPerWord] >> shift(i)));
  }
  __device__ void set(int i, T value) {
    const auto bits = static_cast<std::uint32_t>(std::bit_cast<Bits>(value)) << shift(i);
    const auto mask = static_cast<std::uint32_t>(static_cast<Bits>(~Bits{})) << shift(i);
    Word& word = words[i / kPerWord];
    word = static_cast<Word>((word & ~mask) | bits);
  }

 private:
  __device__ static int shift(int i) { return 8 * static_cast<int>(sizeof(T)) * (i % kPerWord); }
};

/// REQUIRES: `source` is aligned to the pack's size.
template <int kWidth, typename T>
__device__ Pack<T, kWidth> load_pack(const T* source) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(source);
}

/// To global memory. REQUIRES: `target` is aligned to the pack's size.
template <typename T, int kWidth>
__device__ void store_pack(T* target, const Pack<T, kWidth>& pack) {
  *reinterpret_cast<Pack<T, kWidth>*>(target) = pack;
}

/// REQUIRES: as load_pack.
template <typename T, int kWidth>
__device__ void load_values(const T* source, float (&values)[kWidth]) {
  const Pack<T, kWidth> pack = load_pack<kWidth>(source);
  LOCKSTEP_UNROLL
  for (int i = 0; i < kWidth; ++i) values[i] = pack[i];
}

/// Stores `values` as the nearest that T has. REQUIRES: as store_pack.
template <typename T, int kWidth>
__device__ void store_rounded(T* target, const float (&values)[kWidth]) {
  Pack<T, kWidth> pack = {};
  LOCKSTEP_UNROLL
  for (int i = 0; i < kWidth; ++i) pack.set(i, from_float<T>(values[i]));
  store_pack(target, pack);
}

/// A pack of 16 bytes. kWhole: in one access, for which `from` must be aligned to 16 bytes. Else
/// one by one, the first `count` elements only; the others are zero.
template <bool kWhole, typename T>
__device__ Pack<T> load_elements(const T* from, int count) {
  if constexpr (kWhole) {
    return load_pack<kPackWidth<T>>(from);
  } else {
    Pack<T> pack = {};
    LOCKSTEP_UNROLL
    for (int i = 0; i < kPackWidth<T>; ++i) {
      if (i < count) pack.set(i, from[i]);
    }
    return pack;
  }
}

/// Writes a pack as load_elements reads it.
template <bool kWhole, typename T>
__device__ void store_elements(T* to, const Pack<T>& pack, int count) {
  if constexpr (kWhole) {
    store_pack(to, pack);
  } else {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kPackWidth<T>; ++i) {
      if (i < count) to[i] = pack.element(i);
    }
  }
}

inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// Whether every row of all these tensors is whole aligned packs of `width` elements. Of null
/// tensors it is: nobody reads them.
inline bool rows_are_packs(int width, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!*tensor) continue;
    if (tensor->shape.channels() % width != 0 || tensor->row_stride % width != 0 ||
        !is_aligned(tensor->data, static_cast<std::size_t>(width) * size_of(tensor->dtype))) {
      return false;
    }
  }
  return true;
}

/// Calls function(width) with how many channels of all `tensors` a thread takes at a time, a
/// std::integral_constant: kWidth where all rows are packs of so many, else 1.
template <int kWidth, typename Function>
void with_width(std::initializer_list<const Tensor*> tensors, const Function& function) {
  if (rows_are_packs(kWidth, tensors)) {
    function(std::integral_constant<int, kWidth>{});
  } else {
    function(std::integral_constant<int, 1>{});
  }
}

/// Calls function(T{}, width) with the element type T of the first of `tensors`, and what
/// with_width() says of all for 16 bytes of that type.
template <typename Function>
void with_packs(std::initializer_list<const Tensor*> tensors, const Function& function) {
  with_element_type((*tensors.begin())->dtype, [&](auto element) {
    with_width<kPackWidth<decltype(element)>>(tensors,
                                              [&](auto width) { function(element, width); });
  });
}

}  // namespace lockstep::gpu
