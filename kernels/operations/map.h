#pragma once
// Functions of one element or of two that lie at the same place, over whole tensors: a loop over
// the packs of all rows in memory order. Where all tensors are dense, their rows are one after
// another: then packs need not end with the channels. For .cu files only.

#include <algorithm>
#include <array>
#include <type_traits>

#include "backend/element_functions.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {

/// One pack of y = f(a, b), or of y = f(a); += with `accumulate`. y may be a or b.
template <typename Function, typename T, typename Y, int kWidth>
struct MapPack {
  static constexpr bool kTwoInputs = std::is_invocable_v<Function, float, float>;

  PackRows rows;
  Rows<const T> a, b;
  Rows<Y> y;
  bool accumulate;
  Function function;

  __device__ void operator()(std::int32_t i) const {
    const auto [row, pack] = rows.place(i);
    const std::int32_t c = pack * kWidth;
    const auto left = load_pack<kWidth>(a.row(row) + c);
    Pack<T, kWidth> right = {};
    Pack<Y, kWidth> before = {};
    if constexpr (kTwoInputs) right = load_pack<kWidth>(b.row(row) + c);
    Y* target = y.row(row) + c;
    if (accumulate) before = load_pack<kWidth>(target);
    float values[kWidth];
    LOCKSTEP_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      if constexpr (kTwoInputs) {
        values[k] = accumulate ? added(function, before[k], left[k], right[k])
                               : function(left[k], right[k]);
      } else {
        values[k] = accumulate ? added(function, before[k], left[k]) : function(left[k]);
      }
    }
    store_rounded(target, values);
  }
};

/// Where all tensors are dense: rows of `width` elements, or of single ones where these are no
/// multiple.
inline void flatten(std::array<Tensor, 3>& tensors, int width) {
  for (const Tensor& tensor : tensors) {
    if (tensor && !tensor.dense()) return;
  }
  for (Tensor& tensor : tensors) {
    const std::int64_t elements = tensor.shape.elements();
    const Shape flat = elements % width == 0 ? Shape{elements / width, width} : Shape{elements, 1};
    if (tensor) tensor = Tensor(tensor.data, flat, tensor.dtype);
  }
}

/// a and b have the element type T, y has Y. b: null for functions of one element.
template <typename T, typename Y, typename Function>
void launch_map(const Context& context, const Function& function, std::array<Tensor, 3> tensors,
                bool accumulate) {
  constexpr int kPack = std::min(kPackWidth<T>, kPackWidth<Y>);
  flatten(tensors, kPack);
  const auto& [a, b, y] = tensors;
  with_width<kPack>({&a, &b, &y}, [&, &a = a, &b = b, &y = y](auto width) {
    const std::int64_t packs = y.shape.channels() / width;
    for_row_runs("map", y.shape.rows(), packs, [&](std::int64_t first, std::int64_t count) {
      const MapPack<Function, T, Y, width()> map{PackRows(packs),
                                                 Rows<const T>(a).from(first),
                                                 Rows<const T>(b).from(first),
                                                 Rows<Y>(y).from(first),
                                                 accumulate,
                                                 function};
      for_each(context, static_cast<std::int32_t>(count * packs), map);
    });
  });
}

/// All have one element type.
template <typename Function>
void map_activations(const Context& context, const Function& function, const Tensor& a,
                     const Tensor& b, const Tensor& y, bool accumulate) {
  with_element_type(y.dtype, [&](auto element) {
    using T = decltype(element);
    launch_map<T, T>(context, function, {a, b, y}, accumulate);
  });
}

}  // namespace lockstep::gpu
