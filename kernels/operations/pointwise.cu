// Fill, copy, ReLU, sum and dropout. One thread takes one pack of a row after another, the grid all
// packs of all rows in memory order. Where all tensors are dense, they are a single row: then
// nothing is divided, and packs need not end with the channels.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "kernels/operations/pointwise.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/philox.h"
#include "kernels/primitives/views.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep::gpu {
namespace {

/// Where item `i` lies among rows of `packs` packs.
struct Place {
  std::int64_t row, pack;
};
__device__ Place place_of(std::int64_t i, std::int64_t rows, std::int64_t packs) {
  const std::int64_t row = rows == 1 ? 0 : i / packs;
  return {row, i - row * packs};
}

// --- fill, and copies that convert nothing: any element type, in units of up to 16 bytes

template <typename Unit>
struct Copy {
  std::int64_t rows, units;  // units of a row
  const Unit* from;          // null: fill with `value`
  Unit* to;
  std::int64_t from_stride, to_stride;
  Unit value;
};

template <typename Unit>
__global__ void copy_kernel(Copy<Unit> copy) {
  const std::int64_t items = copy.rows * copy.units;
  for (std::int64_t i = first_item(); i < items; i += item_stride()) {
    const Place at = place_of(i, copy.rows, copy.units);
    copy.to[at.row * copy.to_stride + at.pack] =
        copy.from == nullptr ? copy.value : copy.from[at.row * copy.from_stride + at.pack];
  }
}

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
  const Copy<Unit> copy{bytes.rows,
                        bytes.row_bytes / kSize,
                        reinterpret_cast<const Unit*>(bytes.from),
                        reinterpret_cast<Unit*>(bytes.to),
                        bytes.from_stride / kSize,
                        bytes.to_stride / kSize,
                        value};
  launch_loop(context, copy.rows * copy.units, copy_kernel<Unit>, copy);
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
  }
  return std::bit_cast<std::uint32_t>(value);
}

// --- functions of one or two elements

template <typename T, typename Y>
struct Map {
  std::int64_t rows, channels;
  Rows<const T> a, b;
  Rows<Y> y;
  bool accumulate;
};

struct Identity {
  static constexpr bool kTwoInputs = false;
  __device__ float operator()(float x, float) const { return x; }
};
struct Relu {
  static constexpr bool kTwoInputs = false;
  // Written so that NaN passes: a broken activation must reach the loss, where it is noticed.
  __device__ float operator()(float x, float) const { return x < 0.0F ? 0.0F : x; }
};
struct ReluGradient {
  static constexpr bool kTwoInputs = true;
  __device__ float operator()(float y, float grad) const { return y <= 0.0F ? 0.0F : grad; }
};
struct Sum {
  static constexpr bool kTwoInputs = true;
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// y = f(a, b), or += f(a, b). y may be a or b.
template <typename Function, typename T, typename Y, int kWidth>
__global__ void map_kernel(Map<T, Y> map) {
  const std::int64_t packs = map.channels / kWidth;
  for (std::int64_t i = first_item(); i < map.rows * packs; i += item_stride()) {
    const Place at = place_of(i, map.rows, packs);
    const std::int64_t c = at.pack * kWidth;
    const auto a = load_pack<kWidth>(map.a.row(at.row) + c);
    Pack<T, kWidth> b = {};
    Pack<Y, kWidth> before = {};
    if constexpr (Function::kTwoInputs) b = load_pack<kWidth>(map.b.row(at.row) + c);
    Y* target = map.y.row(at.row) + c;
    if (map.accumulate) before = load_pack<kWidth>(target);
    float y[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      const float value = Function()(a[k], b[k]);
      y[k] = map.accumulate ? before[k] + value : value;
    }
    store_rounded(target, y);
  }
}

/// Makes every sample a single row (one sample: all that there is), where all tensors are dense.
template <std::size_t kCount>
void flatten(std::array<Tensor, kCount>& tensors, std::int64_t samples) {
  for (const Tensor& tensor : tensors) {
    if (tensor && !tensor.dense()) return;
  }
  for (Tensor& tensor : tensors) {
    const std::int64_t elements = tensor.shape.elements();
    const Shape flat{samples, samples == 0 ? 0 : elements / samples};
    if (tensor) tensor = Tensor(tensor.data, flat, tensor.dtype);
  }
}

/// a and b have the element type T, y has Y. b: null for functions of one element.
template <typename Function, typename T, typename Y>
void launch_map(const Context& context, std::array<Tensor, 3> tensors, bool accumulate) {
  flatten(tensors, 1);
  const auto& [a, b, y] = tensors;
  const std::int64_t channels = y.shape.channels();
  const Map<T, Y> map{y.shape.rows(),   channels,   Rows<const T>(a),
                      Rows<const T>(b), Rows<Y>(y), accumulate};
  with_width<std::min(kPackWidth<T>, kPackWidth<Y>)>({&a, &b, &y}, [&](auto width) {
    launch_loop(context, map.rows * channels / width, map_kernel<Function, T, Y, width()>, map);
  });
}

/// All have one element type.
template <typename Function>
void map_activations(const Context& context, const Tensor& a, const Tensor& b, const Tensor& y,
                     bool accumulate) {
  with_element_type(y.dtype, [&](auto element) {
    using T = decltype(element);
    launch_map<Function, T, T>(context, {a, b, y}, accumulate);
  });
}

// --- dropout

template <typename T>
struct Dropout {
  std::int64_t rows, channels, rows_per_sample;
  Rows<const T> x;
  Rows<T> y;
  float p, scale;
  bool accumulate;
  PhiloxKey key;
  std::uint64_t first_sample;
};

/// The kept value, rounded before it is added to anything: the CPU does not fuse the two either.
__device__ float scaled(float x, float scale) {
#if defined(__CUDACC__)
  return __fmul_rn(x, scale);
#else
  volatile float product = x * scale;
  return product;
#endif
}

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

template <typename T, int kWidth>
__global__ void dropout_kernel(Dropout<T> drop) {
  const std::int64_t packs = drop.channels / kWidth;
  for (std::int64_t i = first_item(); i < drop.rows * packs; i += item_stride()) {
    const std::int64_t row = i / packs;
    const std::int64_t c = (i - row * packs) * kWidth;
    const std::int64_t sample = row / drop.rows_per_sample;
    const std::int64_t e = (row - sample * drop.rows_per_sample) * drop.channels + c;
    std::uint32_t words[kWidth];
    random_words(drop.key, drop.first_sample + static_cast<std::uint64_t>(sample), e, words);
    const auto x = load_pack<kWidth>(drop.x.row(row) + c);
    T* target = drop.y.row(row) + c;
    Pack<T, kWidth> before = {};
    if (drop.accumulate) before = load_pack<kWidth>(target);
    float y[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      const float value = to_uniform(words[k]) >= drop.p ? scaled(x[k], drop.scale) : 0.0F;
      y[k] = drop.accumulate ? before[k] + value : value;
    }
    store_rounded(target, y);
  }
}

}  // namespace

void fill(const Context& context, const Tensor& tensor, float value) {
  ByteRows bytes = byte_rows(nullptr, tensor);
  bytes.pattern = fill_pattern(tensor.dtype, value);
  copy_rows(context, bytes);
}

void copy(const Context& context, const Tensor& source, const Tensor& destination,
          bool accumulate) {
  check_same_shape("copy", {&source, &destination});
  if (source.dtype == destination.dtype && !accumulate) {
    return copy_rows(context, byte_rows(&source, destination));
  }
  with_element_type(source.dtype, [&](auto from) {
    with_element_type(destination.dtype, [&](auto to) {
      launch_map<Identity, decltype(from), decltype(to)>(context, {source, {}, destination},
                                                         accumulate);
    });
  });
}

void relu_forward(const Context& context, const Tensor& x, const Tensor& y) {
  check_alike("relu_forward", {&x, &y});
  map_activations<Relu>(context, x, {}, y, false);
}

void relu_backward(const Context& context, const Tensor& y, const Tensor& grad_y,
                   const Tensor& grad_x, bool accumulate) {
  check_alike("relu_backward", {&y, &grad_y, &grad_x});
  map_activations<ReluGradient>(context, y, grad_y, grad_x, accumulate);
}

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& y) {
  check_alike("add", {&a, &b, &y});
  map_activations<Sum>(context, a, b, y, false);
}

void dropout(const Context& context, const Tensor& x, const Tensor& y, float p, std::uint64_t seed,
             std::int64_t sample_offset, bool accumulate) {
  check_alike("dropout", {&x, &y});
  LOCKSTEP_CHECK(p >= 0.0F && p < 1.0F, "dropout: expected 0 <= p < 1, got ", p);
  std::array<Tensor, 2> tensors{x, y};
  flatten(tensors, x.shape.batch());
  const Shape& shape = tensors[0].shape;
  with_packs({&tensors[0], &tensors[1]}, [&](auto element, auto width) {
    using T = decltype(element);
    const Dropout<T> drop{shape.rows(),
                          shape.channels(),
                          shape.rows_per_sample(),
                          Rows<const T>(tensors[0]),
                          Rows<T>(tensors[1]),
                          p,
                          1.0F / (1.0F - p),
                          accumulate,
                          philox_key(seed),
                          static_cast<std::uint64_t>(sample_offset)};
    launch_loop(context, shape.elements() / width, dropout_kernel<T, width()>, drop);
  });
}

}  // namespace lockstep::gpu
