#pragma once
// Tensors in runs that kernels can index with 32 bits: of images, or of rows. For .cu files only.

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/primitives/divisor.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Calls launch(first, count) for runs of samples in which none of `tensors` has more than
/// kMaxItems packs of `width` channels: nearly always one run of all. Throws Error when a single
/// image has more.
template <typename Launch>
void for_image_runs(const char* operation, int width, std::initializer_list<const Tensor*> tensors,
                    const Launch& launch) {
  const std::int64_t samples = (*tensors.begin())->shape.batch();
  std::int64_t most = 1;
  for (const Tensor* tensor : tensors) {
    const Shape& shape = tensor->shape;
    most = std::max(most, shape.rows_per_sample() * (shape.channels() / width));
    LOCKSTEP_CHECK(most <= kMaxItems, operation, ": expected images of at most ", kMaxItems,
                   " packs of ", width, " channels, got ", to_string(shape), "; use smaller crops");
  }
  const std::int64_t together = kMaxItems / most;
  for (std::int64_t first = 0; first < samples; first += together) {
    launch(first, std::min(together, samples - first));
  }
}

/// Calls launch(first, count) for runs of rows of at most kMaxItems packs. Throws Error when a
/// single row has more.
template <typename Launch>
void for_row_runs(const char* operation, std::int64_t rows, std::int64_t packs,
                  const Launch& launch) {
  LOCKSTEP_CHECK(packs <= kMaxItems, operation, ": expected rows of at most ", kMaxItems,
                 " packs, got ", packs);
  if (packs == 0) return;
  const std::int64_t together = kMaxItems / packs;
  for (std::int64_t first = 0; first < rows; first += together) {
    launch(first, std::min(together, rows - first));
  }
}

}  // namespace lockstep::gpu
