// Fill, copy and dropout. Copies are loops over the packs of all rows (map.h). Dropout computes
// more than it moves, and a kernel of its own derives the key of its random numbers once per
// thread, where for_each would for every pack.

#include <bit>
#include <cstddef>

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/launchers.h"
#include "kernels/operations/map.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/philox.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

// --- fill, and copies that convert nothing: any element type, in units of up to 16 bytes

template <typename Unit>
struct CopyUnit {
  PackRows rows;
  const Unit* from;  // null: fill with `value`
  Unit* to;
  std::int64_t from_stride, to_stride;
  Unit value;

  __device__ void operator()(std::int32_t i) const {
    const auto [row, unit] = rows.place(i);
    to[row * to_stride + unit] = from == nullptr ? value : from[row * from_stride + unit];
  }
};

/// Rows of bytes; the pattern is what fills four bytes.
struct ByteRows {
  std::int64_t rows, row_bytes;
  const std::byte* from;
  std::byte* to;
  std::int64_t from_stride, to_stride;
  std::uint32_t pattern;
};

template <typename Unit>
void copy_units(const Context& context, const ByteRows& bytes, Unit value) {
  constexpr std::int64_t kSize = sizeof(Unit);
  ByteRows all = bytes;
  if (all.rows == 1) {  // each unit a row: no limit of 32 bits, and nothing to divide
    all.rows = bytes.row_bytes / kSize;
    all.row_bytes = all.from_stride = all.to_stride = kSize;
  }
  const std::int64_t units = all.row_bytes / kSize;
  for_row_runs("copy", all.rows, units, [&](std::int64_t first, std::int64_t count) {
    const std::byte* from = all.from == nullptr ? nullptr : all.from + first * all.from_stride;
    const CopyUnit<Unit> copy{PackRows(units),
                              reinterpret_cast<const Unit*>(from),
                              reinterpret_cast<Unit*>(all.to + first * all.to_stride),
                              all.from_stride / kSize,
                              all.to_stride / kSize,
                              value};
    for_each(context, static_cast<std::int32_t>(count * units), copy);
  });
}

/// With the largest unit that all addresses and extents are multiples of.
void copy_rows(const Context& context, const ByteRows& bytes) {
  const auto all =
      reinterpret_cast<std::uintptr_t>(bytes.from) | reinterpret_cast<std::uintptr_t>(bytes.to) |
      static_cast<std::uintptr_t>(bytes.row_bytes | bytes.from_stride | bytes.to_stride);
  const std::uint32_t word = bytes.pattern;
  if (all % 16 == 0) {
    copy_units(context, bytes, uint4{word, word, word, word});
  } else if (all % 4 == 0) {
    copy_units(context, bytes, word);
  } else if (all % 2 == 0) {
    copy_units(context, bytes, static_cast<std::uint16_t>(word));
  } else {
    copy_units(context, bytes, static_cast<std::uint8_t>(word));
  }
}

ByteRows byte_rows(const Tensor* source, const Tensor& destination) {
  const Shape& shape = destination.shape;
  const auto size = static_cast<std::int64_t>(size_of(destination.dtype));
  ByteRows bytes{};
  bytes.to = static_cast<std::byte*>(destination.data);
  bytes.from = source == nullptr ? nullptr : static_cast<const std::byte*>(source->data);
  if (destination.dense() && (source == nullptr || source->dense())) {
    bytes.rows = 1;
    bytes.row_bytes = shape.elements() * size;
    return bytes;
  }
  bytes.rows = shape.rows();
  bytes.row_bytes = shape.channels() * size;
  bytes.from_stride = source == nullptr ? 0 : source->row_stride * size;
  bytes.to_stride = destination.row_stride * size;
  return bytes;
}

std::uint32_t fill_pattern(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat32:
      break;
    case DType::kBFloat16:
      return from_float<BFloat16>(value).bits * 0x00010001U;
    case DType::kFloat16:
      return from_float<Float16>(value).bits * 0x00010001U;
    case DType::kUInt8:
      return static_cast<std::uint8_t>(value) * 0x01010101U;
    case DType::kUInt16:
      return static_cast<std::uint16_t>(value) * 0x00010001U;
  }
  return std::bit_cast<std::uint32_t>(value);
}

// --- dropout

/// Random words of elements e, ..., e + kWidth - 1 of a sample. Element e takes the e-th word of
/// the sample's stream: a pack takes whole blocks of Philox, a single element the block around it.
template <int kWidth>
__device__ void random_words(PhiloxKey key, std::uint64_t sample, std::int64_t e,
                             std::uint32_t (&words)[kWidth]) {
  LOCKSTEP_UNROLL
  for (int k = 0; k < kWidth; k += 4) {
    const auto block =
        philox_block(key, RngPurpose::kDropout, sample, static_cast<std::uint64_t>((e + k) / 4));
    if constexpr (kWidth == 1) {
      const auto lower = e % 2 == 0 ? block.words[0] : block.words[1];
      const auto upper = e % 2 == 0 ? block.words[2] : block.words[3];
      words[0] = e % 4 < 2 ? lower : upper;
    } else {
      LOCKSTEP_UNROLL
      for (int w = 0; w < 4; ++w) words[k + w] = block.words[w];
    }
  }
}

template <typename T>
struct Dropout {
  PackRows rows;
  std::int32_t items;
  std::int32_t rows_per_sample;
  Divisor by_rows_per_sample;
  std::int64_t channels;
  Rows<const T> x;
  Rows<T> y;
  DropoutElement element;
  bool accumulate;
  DeviceScalar<std::uint64_t> seed;
  std::uint64_t first_sample;
};

template <typename T, int kWidth>
__global__ void dropout_kernel(Dropout<T> drop) {
  const PhiloxKey key = philox_key(drop.seed.get());
  for_each_item(drop.items, [&](std::int32_t i) {
    const auto [row, pack] = drop.rows.place(i);
    const std::int32_t c = pack * kWidth;
    const std::int32_t sample = row / drop.by_rows_per_sample;
    const std::int64_t e = (row - sample * drop.rows_per_sample) * drop.channels + c;
    std::uint32_t words[kWidth];
    random_words(key, drop.first_sample + static_cast<std::uint64_t>(sample), e, words);
    const auto x = load_pack<kWidth>(drop.x.row(row) + c);
    T* target = drop.y.row(row) + c;
    Pack<T, kWidth> before = {};
    if (drop.accumulate) before = load_pack<kWidth>(target);
    float values[kWidth];
    LOCKSTEP_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      const float value = drop.element(x[k], to_uniform(words[k]));
      values[k] = drop.accumulate ? before[k] + value : value;
    }
    store_rounded(target, values);
  });
}

/// Makes every sample a single row, where both tensors are dense.
void flatten_samples(Tensor& x, Tensor& y) {
  const std::int64_t samples = x.shape.batch();
  if (samples == 0 || !x.dense() || !y.dense()) return;
  const Shape flat{samples, x.shape.elements() / samples};
  x = Tensor(x.data, flat, x.dtype);
  y = Tensor(y.data, flat, y.dtype);
}

}  // namespace

void fill(const Context& context, const Tensor& tensor, float value) {
  check_fill(tensor);
  ByteRows bytes = byte_rows(nullptr, tensor);
  bytes.pattern = fill_pattern(tensor.dtype, value);
  copy_rows(context, bytes);
}

void copy(const Context& context, const Tensor& source, const Tensor& destination,
          bool accumulate) {
  check_copy(source, destination, accumulate);
  if (source.dtype == destination.dtype && !accumulate) {
    return copy_rows(context, byte_rows(&source, destination));
  }
  with_element_type(source.dtype, [&](auto from) {
    with_element_type(destination.dtype, [&](auto to) {
      launch_map<decltype(from), decltype(to)>(context, Identity(), {source, {}, destination},
                                               accumulate);
    });
  });
}

void GpuOperations::fill(const Tensor& tensor, float value) {
  if (context().host_slots != nullptr) context().host_slots->forget(tensor.data);
  gpu::fill(context().entered(), tensor, value);
}

void GpuOperations::copy(const Tensor& source, const Tensor& destination, bool accumulate) {
  if (context().host_slots != nullptr) context().host_slots->forget(destination.data);
  gpu::copy(context().entered(), source, destination, accumulate);
}

void GpuActivations::dropout(const Tensor& x, const Tensor& y, float p,
                             DeviceScalar<std::uint64_t> seed, std::int64_t sample_offset,
                             bool accumulate) {
  check_dropout(x, y, p);
  const Context& context = context_.entered();
  Tensor from = x, to = y;
  flatten_samples(from, to);
  const std::int64_t rows = from.shape.rows_per_sample();
  with_packs({&from, &to}, [&](auto element, auto width) {
    using T = decltype(element);
    const std::int64_t packs = from.shape.channels() / width;
    for_row_runs("dropout", from.shape.batch(), rows * packs,
                 [&](std::int64_t first, std::int64_t count) {
                   const auto items = static_cast<std::int32_t>(count * rows * packs);
                   const Dropout<T> drop{PackRows(packs),
                                         items,
                                         static_cast<std::int32_t>(rows),
                                         Divisor(rows),
                                         from.shape.channels(),
                                         Rows<const T>(from).from(first * rows),
                                         Rows<T>(to).from(first * rows),
                                         DropoutElement(p),
                                         accumulate,
                                         seed,
                                         static_cast<std::uint64_t>(sample_offset + first)};
                   launch_loop(context, items, dropout_kernel<T, width()>, drop);
                 });
  });
}

}  // namespace lockstep::gpu
