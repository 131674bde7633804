#pragma once
// Sums of fp32 values by fp32 additions alone: n terms are wrong by at most n^2 * 2^-48 of the sum
// of their sizes (Ogita, Rump and Oishi 2005, Accurate sum and dot product, proposition 4.5), which
// for a block's terms is far below fp32's own rounding. On GeForce cards double takes 64 times as
// long as float. For .cu files only.

#include <cmath>

#include "kernels/primitives/launch.h"

namespace lockstep::gpu {

/// A sum and what its roundings left out (Knuth's TwoSum; The Art of Computer Programming, volume
/// 2, section 4.2.2, theorem B).
struct CompensatedSum {
  float sum = 0, rest = 0;

  __device__ void add(float value) {
    const float next = sum + value;
    const float taken = next - sum;
    rest += (sum - (next - taken)) + (value - taken);
    sum = next;
  }
  /// a * b, whose own rounding is known exactly by a fused multiply-add. No compiler fuses
  /// __fmul_rn with the addition that follows.
  __device__ void add_product(float a, float b) {
    const float product = __fmul_rn(a, b);
    add(product);
    rest += fmaf(a, b, -product);
  }
  /// a * b * b, where a * b may have more bits than a float.
  __device__ void add_square(float a, float b) {
    const float product = __fmul_rn(a, b);
    add_product(product, b);
    add_product(fmaf(a, b, -product), b);
  }
  __device__ void add(const CompensatedSum& other) {
    add(other.sum);
    rest += other.rest;
  }
  /// What is left of an infinite sum is NaN.
  __device__ double value() const {
    return sum - sum == 0 ? static_cast<double>(sum) + static_cast<double>(rest) : sum;
  }
  /// The same as two floats, the first of them the nearest.
  __device__ CompensatedSum normalized() const {
    if (sum - sum != 0) return {sum, 0};
    CompensatedSum result{sum, 0};
    result.add(rest);
    return result;
  }
};

}  // namespace lockstep::gpu
