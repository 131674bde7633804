#pragma once
// Element by element over whole tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cpu/element.h"
#include "backend/cpu/parallel_for.h"
#include "backend/element_functions.h"

namespace lockstep {

/// target[i] = f(source[i]...), or += with `accumulate`. Everything that f calls is inlined: with a
/// call in it a loop is not made of vectors.
template <typename Function, typename Target, typename... Sources>
[[gnu::flatten]] void map_stretch(const Function& f, std::int64_t count, bool accumulate,
                                  Target* target, const Sources*... source) {
  if (accumulate) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) target[i] = added(f, target[i], source[i]...);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) target[i] = f(source[i]...);
  }
}

/// The tensor itself where it is fp32, else one of its shape in `memory`, for its values.
inline Tensor in_fp32(const Tensor& tensor, float* memory) {
  return tensor.dtype == DType::kFloat32 ? tensor : Tensor(memory, tensor.shape);
}

/// destination = source, rounded to its type, or += with `accumulate`. Nothing where a tensor would
/// be written to itself.
void convert(const Tensor& source, const Tensor& destination, bool accumulate, int threads);

/// y[i] = f(x[i]...), or += with `accumulate`. y may alias any of x, which are tensors of its
/// shape and type.
template <typename Function, typename... Tensors>
void map(const Function& f, const Tensor& y, bool accumulate, int threads, const Tensors&... x) {
  constexpr std::size_t kSources = sizeof...(Tensors);
  with_element_type(y.dtype, [&]<typename T>(T) {
    T* to = static_cast<T*>(y.data);
    const std::array<const T*, kSources> from{static_cast<const T*>(x.data)...};
    for_each_stretch<kSources + 1>(
        y.shape, {x.row_stride..., y.row_stride}, threads, [&](const auto& at, std::int64_t count) {
          [&]<std::size_t... k>(std::index_sequence<k...>) {
            map_stretch(f, count, accumulate, to + at[kSources], (from[k] + at[k])...);
          }
          (std::make_index_sequence<kSources>());
        });
  });
}

}  // namespace lockstep
