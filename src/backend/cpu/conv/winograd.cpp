#include "backend/cpu/conv/winograd.h"

#include <omp.h>

#include <algorithm>

#include "backend/cpu/conv/products/products.h"
#include "backend/cpu/conv/products/slices.h"
#include "backend/cpu/conv/products/weight_gradient.h"
#include "backend/cpu/conv/winograd/plan.h"
#include "backend/cpu/conv/winograd/transforms.h"
#include "backend/cpu/simd.h"

namespace lockstep {

namespace {

using namespace matmul;
using namespace simd;
using namespace winograd;

Dilation dilation_of(const ConvGeometry& geometry) {
  return {geometry.dilation_h, geometry.dilation_w};
}

/// With vectors of kLanes floats and tiles of kTile x kTile outputs, of tensors of T.
template <std::int64_t kLanes, int kTile, typename T>
class WinogradConvolution final : public Convolution {
 public:
  WinogradConvolution(const ConvGeometry& geometry, const Shape& input, int threads)
      : geometry_(geometry),
        padding_h_(geometry.padding_h / geometry.dilation_h),
        padding_w_(geometry.padding_w / geometry.dilation_w),
        threads_(threads),
        in_(padded(geometry.in_channels)),
        out_(padded(geometry.out_channels)),
        image_tiles_(
            TileGrid(geometry.output_shape(input.with_batch(1)), kTile, dilation_of(geometry))
                .count),
        block_(convolution_block(kPoints, in_, out_, Products::kRows, input.batch() * image_tiles_,
                                 threads)),
        gradient_(geometry, Slices(geometry.out_channels, kSliceChannels),
                  Slices(geometry.in_channels, kSliceChannels),
                  std::clamp<std::int64_t>(image_tiles_ / kTilesPerPart, 1, kMaxParts),
                  input.batch(), threads),
        sum_block_(tiles_per_block(kPoints,
                                   std::min(in_, kSliceChannels) + std::min(out_, kSliceChannels),
                                   kSumBlockBytes, kSumGroup)) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool strided) const override;
  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override;
  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override;
  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override;

 private:
  using Products = matmul::Products<kLanes>;
  using TileTransforms = winograd::TileTransforms<kLanes, kTile, T>;
  static constexpr std::int64_t kPoints = winograd::kPoints<kTile>;

  static std::int64_t point_floats(std::int64_t rows, std::int64_t columns) {
    return kPoints * point_stride(rows, columns);
  }
  static std::int64_t lanes_at_once(std::int64_t depth, std::int64_t lanes) {
    return winograd::lanes_at_once(kPoints, depth, lanes, Products::kPanel);
  }
  static std::int64_t kernel_floats(std::int64_t depth, std::int64_t lanes) {
    return point_floats(depth, lanes_at_once(depth, lanes));
  }
  /// One thread's transformed tiles.
  std::int64_t block_floats() const {
    return point_floats(block_, apart(in_)) + point_floats(block_, apart(out_));
  }
  /// A sum, and the transformed tiles that it is of.
  std::int64_t sum_floats() const {
    const std::int64_t in = std::min(in_, kSliceChannels), out = std::min(out_, kSliceChannels);
    return point_floats(out, in) + point_floats(sum_block_, in) + point_floats(sum_block_, out);
  }
  /// The convolution without the kernels' transform, block by block.
  struct Task {
    const Tensor& x;
    std::int64_t padding_h, padding_w;
    const float* bias;
    const Tensor& y;
    const RowsDone& done;
    TileGrid grid;
    PointKernels kernels;
  };
  void convolve(const Tensor& x, std::int64_t padding_h, std::int64_t padding_w,
                const KernelSource& kernels, const float* bias, const Tensor& y, float* scratch,
                const RowsDone& done) const;
  /// Of the channels of y whose kernels are transformed at once.
  void convolve_lanes(const Tensor& x, std::int64_t padding_h, std::int64_t padding_w,
                      const KernelSource& kernels, const float* bias, const Tensor& y,
                      float* scratch, const RowsDone& done) const;
  void convolve_block(const Task& task, std::int64_t first, float* block) const;
  /// The sums of the weights' gradient.
  struct Sum {
    const WinogradConvolution& convolution;
    const Tensor& x;
    const Tensor& grad_y;

    void operator()(const SumTask& task, bool add, float* to, float* memory) const;
  };
  void sum_tiles(const Tensor& x, const Tensor& grad_y, TileRange tiles, float* sum,
                 float* block) const;

  const ConvGeometry geometry_;
  const std::int64_t padding_h_, padding_w_;  // in pixels of a sub-grid
  const int threads_;
  const std::int64_t in_, out_;     // padded channels
  const std::int64_t image_tiles_;  // of one image
  const std::int64_t block_;        // tiles of one block
  const WeightGradient gradient_;
  const std::int64_t sum_block_;  // tiles transformed at once; the sums' order depends on it
};

template <std::int64_t kLanes, int kTile, typename T>
std::size_t WinogradConvolution<kLanes, kTile, T>::scratch_bytes(ConvPass pass, bool) const {
  const std::int64_t floats = pass == ConvPass::kBackwardWeights
                                  ? gradient_.scratch_floats(sum_floats())
                                  : std::max(kernel_floats(in_, out_), kernel_floats(out_, in_)) +
                                        threads_ * block_floats();
  return static_cast<std::size_t>(floats) * sizeof(float);
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::forward(const Tensor& x, const float* weight,
                                                    const float* bias, const Tensor& y,
                                                    void* scratch, const RowsDone& done) {
  const std::int64_t in = geometry_.in_channels;
  const KernelSource kernels{weight, in, 9, geometry_.out_channels, 9 * in, false};
  convolve(x, padding_h_, padding_w_, kernels, bias, y, static_cast<float*>(scratch), done);
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::backward_data(const Tensor& grad_y, const float* weight,
                                                          const Tensor& grad_x, void* scratch) {
  // The transposed convolution: kernels turned by 180 degrees, channels exchanged, and the padding
  // that makes the output of this as large as the input of the forward pass.
  const std::int64_t in = geometry_.in_channels;
  const KernelSource kernels{weight, geometry_.out_channels, 9 * in, in, 9, true};
  convolve(grad_y, 2 - padding_h_, 2 - padding_w_, kernels, nullptr, grad_x,
           static_cast<float*>(scratch), nullptr);
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::convolve(const Tensor& x, std::int64_t padding_h,
                                                     std::int64_t padding_w,
                                                     const KernelSource& kernels, const float* bias,
                                                     const Tensor& y, float* scratch,
                                                     const RowsDone& done) const {
  const std::int64_t depth = padded(kernels.depth), channels = kernels.lanes;
  const std::int64_t at_once = lanes_at_once(depth, padded(channels));
  for (std::int64_t first = 0; first < channels; first += at_once) {
    KernelSource some = kernels;
    some.data += first * kernels.lane_stride;
    some.lanes = std::min(at_once, channels - first);
    const float* its_bias = bias != nullptr ? bias + first : nullptr;
    const bool last = first + at_once >= channels;
    convolve_lanes(x, padding_h, padding_w, some, its_bias, y.channel_range(first, some.lanes),
                   scratch, last ? done : nullptr);
  }
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::convolve_lanes(
    const Tensor& x, std::int64_t padding_h, std::int64_t padding_w, const KernelSource& kernels,
    const float* bias, const Tensor& y, float* scratch, const RowsDone& done) const {
  const std::int64_t depth = padded(kernels.depth);
  const std::int64_t lanes = padded(kernels.lanes);
  const PointKernels u{scratch, point_stride(depth, lanes), depth, lanes, Products::kPanel};
  const Task task{
      x, padding_h, padding_w, bias, y, done, TileGrid(y.shape, kTile, dilation_of(geometry_)), u};
  float* blocks = scratch + kPoints * u.stride;
  // Neighbouring blocks go to one thread, which prefetches; a few turns per thread even out its
  // delays.
  const std::int64_t count = (task.grid.count + block_ - 1) / block_;
  const std::int64_t turn = std::max<std::int64_t>(count / (8 * threads_), 1);
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
  {
#pragma omp for schedule(static)
    for (std::int64_t lane = 0; lane < lanes; lane += kKernelLanes) {
      transform_kernels<kTile>(kernels, lane, u);
    }
#pragma omp for schedule(dynamic, turn)
    for (std::int64_t index = 0; index < count; ++index) {
      convolve_block(task, index * block_, blocks + omp_get_thread_num() * block_floats());
    }
  }
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::convolve_block(const Task& task, std::int64_t first,
                                                           float* block) const {
  const PointKernels& u = task.kernels;
  const std::int64_t from_stride = apart(u.depth), to_stride = apart(u.lanes);
  const PointTiles v{block, point_stride(block_, from_stride), u.depth, from_stride};
  const PointTiles m{block + kPoints * v.stride, point_stride(block_, to_stride), u.lanes,
                     to_stride};
  const TileRange range = task.grid.range(first, block_);
  const TileRange next = task.grid.range(first + block_, block_);
  TileTransforms::input(task.x, task.padding_h, task.padding_w, task.grid, range, v);
  for (std::int64_t p = 0; p < kPoints; ++p) {
    Products::multiply({v.data + p * v.stride, from_stride}, u.data + p * u.stride,
                       {m.data + p * m.stride, to_stride}, {range.count, u.depth, u.lanes});
    if (p < kPrefetchShares) {
      prefetch_pixels(task.x, 2 - task.padding_h, task.grid, next, p);
      prefetch_pixels(task.y, 0, task.grid, range, p);
    }
  }
  TileTransforms::output(m, task.grid, range, task.bias, task.y);
  if (task.done) for_each_output_run(task.y.shape, task.grid, range, task.done);
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::backward_weights(const Tensor& x, const Tensor& grad_y,
                                                             float* grad_weight, void* scratch) {
  if (x.shape.batch() == 0) return;
  gradient_.add(x.shape.batch(), Sum{*this, x, grad_y}, sum_floats(), grad_weight,
                static_cast<float*>(scratch));
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::Sum::operator()(const SumTask& task, bool add,
                                                            float* to, float* memory) const {
  const auto& [image, part, out, in] = task;
  const std::int64_t tiles = convolution.image_tiles_, parts = convolution.gradient_.parts();
  const std::int64_t begin = tiles * part / parts, end = tiles * (part + 1) / parts;
  float* block = memory + point_floats(out.padded, in.padded);
  convolution.sum_tiles(x.channel_range(in.begin, in.count),
                        grad_y.channel_range(out.begin, out.count),
                        {image * tiles + begin, end - begin}, memory, block);
  for (std::int64_t o = 0; o < out.count; ++o) {
    kernel_gradients<kTile>(memory + o * in.padded, point_stride(out.padded, in.padded), in.padded,
                            add, to + o * 9 * in.padded);
  }
}

template <std::int64_t kLanes, int kTile, typename T>
void WinogradConvolution<kLanes, kTile, T>::sum_tiles(const Tensor& x, const Tensor& grad_y,
                                                      TileRange tiles, float* sum,
                                                      float* block) const {
  const std::int64_t in = padded(x.shape.channels()), out = padded(grad_y.shape.channels());
  const TileGrid grid(grad_y.shape, kTile, dilation_of(geometry_));
  const PointTiles v{block, point_stride(sum_block_, in), in};
  const PointTiles z{block + kPoints * v.stride, point_stride(sum_block_, out), out};

  const std::int64_t end = tiles.first + tiles.count;
  for (std::int64_t first = tiles.first; first < end; first += sum_block_) {
    const TileRange range{first, std::min(sum_block_, end - first)};
    const TileRange next = grid.range(first + sum_block_, sum_block_);
    TileTransforms::input(x, padding_h_, padding_w_, grid, range, v);
    TileTransforms::grad_output(grad_y, grid, range, z);
    for (std::int64_t p = 0; p < kPoints; ++p) {
      Products::multiply_transposed({z.data + p * z.stride, out}, {v.data + p * v.stride, in},
                                    {sum + p * point_stride(out, in), in}, {out, range.count, in},
                                    first > tiles.first);
      if (p < kPrefetchShares) {
        prefetch_pixels(x, 2 - padding_h_, grid, next, p);
        prefetch_pixels(grad_y, 0, grid, next, p);
      }
    }
  }
}

}  // namespace

// Whether the pixels of an output's sub-grid read one sub-grid of the input.
static bool sub_grids_keep(std::int64_t padding, std::int64_t dilation) {
  return dilation > 0 && padding % dilation == 0 && padding / dilation <= 2;
}

bool winograd_supports(const ConvGeometry& geometry) {
  const auto is = [](std::int64_t h, std::int64_t w, std::int64_t value) {
    return h == value && w == value;
  };
  return is(geometry.kernel_h, geometry.kernel_w, 3) &&
         is(geometry.stride_h, geometry.stride_w, 1) && geometry.groups == 1 &&
         sub_grids_keep(geometry.padding_h, geometry.dilation_h) &&
         sub_grids_keep(geometry.padding_w, geometry.dilation_w);
}

bool winograd_pays(const ConvGeometry& geometry) {
  const std::int64_t in = geometry.in_channels;
  const std::int64_t out = geometry.out_channels;
  // Against the 2.25 times fewer products; half of that goes to the transforms.
  return winograd_supports(geometry) && in >= kChannelUnit && out >= kChannelUnit &&
         4 * padded(in) * padded(out) <= 5 * in * out;
}

bool winograd_fits(const ConvGeometry& geometry, const Shape& input, int tile) {
  const Shape output = geometry.output_shape(input);
  return tile * tile * TileGrid(output, tile, dilation_of(geometry)).count <= 2 * output.rows();
}

std::unique_ptr<Convolution> make_winograd_convolution(const ConvGeometry& geometry,
                                                       const Shape& input, int threads, int lanes,
                                                       int tile, DType dtype) {
  LOCKSTEP_CHECK(winograd_supports(geometry), "no Winograd convolution for a kernel of ",
                 geometry.kernel_h, "x", geometry.kernel_w, ", stride ", geometry.stride_h, "x",
                 geometry.stride_w, ", groups ", geometry.groups);
  LOCKSTEP_CHECK(lanes == 8 || lanes == 16, "no Winograd convolution with vectors of ", lanes,
                 " floats; there are 8 and 16");
  LOCKSTEP_CHECK(tile == 4 || (tile == 2 && dtype == DType::kFloat32),
                 "no Winograd convolution with tiles of ", tile, "x", tile, " of ",
                 to_string(dtype), " tensors; there are 4x4, and 2x2 of fp32");
  const auto make = [&]<int kTile, typename T>() -> std::unique_ptr<Convolution> {
    if (lanes == 16) {
      return std::make_unique<WinogradConvolution<16, kTile, T>>(geometry, input, threads);
    }
    return std::make_unique<WinogradConvolution<8, kTile, T>>(geometry, input, threads);
  };
  if (tile == 2) return make.operator()<2, float>();
  if (dtype == DType::kFloat32) return make.operator()<4, float>();
  return make.operator()<4, BFloat16>();
}

}  // namespace lockstep
