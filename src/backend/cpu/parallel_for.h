#pragma once
// Splitting of loops over the OpenMP threads of one replica. Bodies must not throw: an exception
// cannot leave an OpenMP region. Never reduce across the parts that `parallel_for` makes: they
// depend on the thread count.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Elements below which a part of a loop is not worth a thread.
inline constexpr std::int64_t kElementsPerThread = 16384;

/// Calls body(begin, end) for contiguous parts of [0, count), at most one per thread;
/// `item_elements` says how many elements one item stands for, so that small loops stay on the
/// calling thread.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t item_elements, int threads, const Body& body) {
  const std::int64_t worth = count * item_elements / kElementsPerThread;
  const std::int64_t parts = std::min({static_cast<std::int64_t>(threads), worth, count});
  if (parts <= 1) {
    if (count > 0) body(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (std::int64_t part = 0; part < parts; ++part) {
    body(count * part / parts, count * (part + 1) / parts);
  }
}

/// Calls body(offsets, elements) for stretches of memory that are contiguous in all of K tensors of
/// `shape`; offsets [K] are the stretch's first element in each. A stretch is long when all are
/// dense, else one row.
template <std::size_t K, typename Body>
void for_each_stretch(const Shape& shape, const std::array<std::int64_t, K>& row_strides,
                      int threads, const Body& body) {
  const std::int64_t channels = shape.channels();
  const auto is_dense = [&](std::int64_t stride) { return stride == channels; };
  if (std::all_of(row_strides.begin(), row_strides.end(), is_dense)) {
    parallel_for(shape.elements(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
      std::array<std::int64_t, K> offsets;
      offsets.fill(begin);
      body(offsets, end - begin);
    });
    return;
  }
  parallel_for(shape.rows(), channels, threads, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::int64_t, K> offsets;
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::size_t k = 0; k < K; ++k) offsets[k] = row * row_strides[k];
      body(offsets, channels);
    }
  });
}

}  // namespace lockstep
