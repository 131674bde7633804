// Fill, copy, ReLU, sum and dropout. One thread takes one pack of a row after another, the grid all
// packs of all rows in memory order. Where all tensors are dense, they are a single row: then
// nothing is divided, and packs need not end with the channels.

#include <bit>
#include <cstddef>

#include "kernels/operations/pointwise.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/philox.h"

namespace lockstep::gpu {
namespace {

void check_same_shape(const char* operation, const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.shape == b.shape, operation, ": shapes differ, ", to_string(a.shape), " and ",
                 to_string(b.shape));
}

/// Where item `i` lies among rows of `packs` packs.
struct Place {
  std::int64_t row, pack;
};
__device__ Place place_of(std::int64_t i, std::int64_t rows, std::int64_t packs) {
  const std::int64_t row = rows == 1 ? 0 : i / packs;
  return {row, i - row * packs};
}

// --- copy and fill: any element type, in units of up to 16 bytes

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
  launch(copy_kernel<Unit>, blocks_for_items(context, copy.rows * copy.units), kPackThreads,
         context.stream, copy);
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

struct Map {
  std::int64_t rows, channels;
  const float *a, *b;
  float* y;
  std::int64_t a_stride, b_stride, y_stride;
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
template <typename Function, int kWidth>
__global__ void map_kernel(Map map) {
  const std::int64_t packs = map.channels / kWidth;
  for (std::int64_t i = first_item(); i < map.rows * packs; i += item_stride()) {
    const Place at = place_of(i, map.rows, packs);
    const std::int64_t c = at.pack * kWidth;
    const auto a = load_pack<kWidth>(map.a + at.row * map.a_stride + c);
    Pack<float, kWidth> b{}, before{}, y;
    if constexpr (Function::kTwoInputs) b = load_pack<kWidth>(map.b + at.row * map.b_stride + c);
    float* target = map.y + at.row * map.y_stride + c;
    if (map.accumulate) before = load_pack<kWidth>(static_cast<const float*>(target));
    for (int k = 0; k < kWidth; ++k) {
      const float value = Function()(a.values[k], b.values[k]);
      y.values[k] = map.accumulate ? before.values[k] + value : value;
    }
    store_pack<kWidth>(target, y);
  }
}

template <typename Function>
void launch_map(const Context& context, Map map) {
  const std::int64_t elements = map.rows * map.channels;
  const bool packs =
      (map.channels | map.a_stride | map.b_stride | map.y_stride) % kPackWidth == 0 &&
      is_aligned(map.a, 16) && is_aligned(map.b, 16) && is_aligned(map.y, 16);
  if (packs) {
    launch(map_kernel<Function, kPackWidth>, blocks_for_items(context, elements / kPackWidth),
           kPackThreads, context.stream, map);
  } else {
    launch(map_kernel<Function, 1>, blocks_for_items(context, elements), kPackThreads,
           context.stream, map);
  }
}

Map map_of(const Tensor& a, const Tensor* b, const Tensor& y, bool accumulate) {
  Map map{1, y.shape.elements(), a.floats(), b == nullptr ? nullptr : b->floats(), y.floats(), 0, 0,
          0, accumulate};
  if (a.dense() && y.dense() && (b == nullptr || b->dense())) return map;
  map.rows = y.shape.rows();
  map.channels = y.shape.channels();
  map.a_stride = a.row_stride;
  map.b_stride = b == nullptr ? 0 : b->row_stride;
  map.y_stride = y.row_stride;
  return map;
}

// --- dropout

struct Dropout {
  std::int64_t rows, channels, rows_per_sample;
  const float* x;
  float* y;
  std::int64_t x_stride, y_stride;
  float p, scale;
  bool accumulate;
  DeviceScalar<std::uint64_t> seed = 0;
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

/// Element e of a sample takes the e-th number of the sample's stream: a pack takes a whole block
/// of Philox, a single element computes the block around it.
template <int kWidth>
__global__ void dropout_kernel(Dropout drop) {
  const std::int64_t packs = drop.channels / kWidth;
  const PhiloxKey key = philox_key(drop.seed.get());
  for (std::int64_t i = first_item(); i < drop.rows * packs; i += item_stride()) {
    const std::int64_t row = i / packs;
    const std::int64_t c = (i - row * packs) * kWidth;
    const std::int64_t sample = row / drop.rows_per_sample;
    const std::int64_t e = (row - sample * drop.rows_per_sample) * drop.channels + c;
    const auto random = philox_block(key, RngPurpose::kDropout,
                                     drop.first_sample + static_cast<std::uint64_t>(sample),
                                     static_cast<std::uint64_t>(e / 4));
    const auto x = load_pack<kWidth>(drop.x + row * drop.x_stride + c);
    float* target = drop.y + row * drop.y_stride + c;
    Pack<float, kWidth> before{}, y;
    if (drop.accumulate) before = load_pack<kWidth>(static_cast<const float*>(target));
    for (int k = 0; k < kWidth; ++k) {
      std::uint32_t word = random.words[k];
      if constexpr (kWidth == 1) {
        const auto lower = e % 2 == 0 ? random.words[0] : random.words[1];
        const auto upper = e % 2 == 0 ? random.words[2] : random.words[3];
        word = e % 4 < 2 ? lower : upper;
      }
      const float value = to_uniform(word) >= drop.p ? scaled(x.values[k], drop.scale) : 0.0F;
      y.values[k] = drop.accumulate ? before.values[k] + value : value;
    }
    store_pack<kWidth>(target, y);
  }
}

void launch_dropout(const Context& context, const Dropout& drop) {
  const std::int64_t elements = drop.rows * drop.channels;
  const bool packs = (drop.channels | drop.x_stride | drop.y_stride) % kPackWidth == 0 &&
                     is_aligned(drop.x, 16) && is_aligned(drop.y, 16);
  if (packs) {
    launch(dropout_kernel<kPackWidth>, blocks_for_items(context, elements / kPackWidth),
           kPackThreads, context.stream, drop);
  } else {
    launch(dropout_kernel<1>, blocks_for_items(context, elements), kPackThreads, context.stream,
           drop);
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
  check_same_shape("copy", source, destination);
  if (accumulate) {
    return launch_map<Identity>(context, map_of(source, nullptr, destination, true));
  }
  LOCKSTEP_CHECK(source.dtype == destination.dtype, "copy: types differ, ", to_string(source.dtype),
                 " and ", to_string(destination.dtype));
  copy_rows(context, byte_rows(&source, destination));
}

void relu_forward(const Context& context, const Tensor& x, const Tensor& y) {
  check_same_shape("relu_forward", x, y);
  launch_map<Relu>(context, map_of(x, nullptr, y, false));
}

void relu_backward(const Context& context, const Tensor& y, const Tensor& grad_y,
                   const Tensor& grad_x, bool accumulate) {
  check_same_shape("relu_backward", y, grad_y);
  check_same_shape("relu_backward", y, grad_x);
  launch_map<ReluGradient>(context, map_of(y, &grad_y, grad_x, accumulate));
}

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& y) {
  check_same_shape("add", a, b);
  check_same_shape("add", a, y);
  launch_map<Sum>(context, map_of(a, &b, y, false));
}

void dropout(const Context& context, const Tensor& x, const Tensor& y, float p,
             DeviceScalar<std::uint64_t> seed, std::int64_t sample_offset, bool accumulate) {
  check_same_shape("dropout", x, y);
  LOCKSTEP_CHECK(p >= 0.0F && p < 1.0F, "dropout: expected 0 <= p < 1, got ", p);
  Dropout drop{};
  drop.x = x.floats();
  drop.y = y.floats();
  drop.p = p;
  drop.scale = 1.0F / (1.0F - p);
  drop.accumulate = accumulate;
  drop.seed = seed;
  drop.first_sample = static_cast<std::uint64_t>(sample_offset);
  if (x.dense() && y.dense()) {  // a sample is a row
    drop.rows = x.shape.batch();
    drop.rows_per_sample = 1;
    drop.channels = x.shape.rows_per_sample() * x.shape.channels();
    drop.x_stride = drop.y_stride = drop.channels;
  } else {
    drop.rows = x.shape.rows();
    drop.rows_per_sample = x.shape.rows_per_sample();
    drop.channels = x.shape.channels();
    drop.x_stride = x.row_stride;
    drop.y_stride = y.row_stride;
  }
  launch_dropout(context, drop);
}

}  // namespace lockstep::gpu
