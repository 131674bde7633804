#pragma once
// Which positions of its input a layer reads, for Network::receptive_radius.

#include <cstdint>

#include "lockstep/nn/layer.h"

namespace lockstep {

/// A kernel that moves along one side of a map.
struct SlidingKernel {
  std::int64_t size = 1, stride = 1, padding = 0, dilation = 1;
};

/// The positions that a convolution or a pooling reads for those of its output.
inline Positions kernel_reads(Positions output, const SlidingKernel& kernel) {
  return {output.first * kernel.stride - kernel.padding,
          output.last * kernel.stride - kernel.padding + (kernel.size - 1) * kernel.dilation};
}

/// Positions may lie before the map, where C++ rounds towards 0.
inline std::int64_t divide_down(std::int64_t value, std::int64_t by) {
  return value >= 0 ? value / by : -((by - 1 - value) / by);
}

/// Returns the positions that a transposed convolution reads. `kernel`: of the convolution from its
/// output to its input.
inline Positions kernel_writes(Positions output, const SlidingKernel& kernel) {
  const std::int64_t reach = (kernel.size - 1) * kernel.dilation;
  return {-divide_down(reach - output.first - kernel.padding, kernel.stride),
          divide_down(output.last + kernel.padding, kernel.stride)};
}

}  // namespace lockstep
