#include "backend/cpu/winograd/conv.h"

#include <omp.h>

#include <algorithm>

#include "backend/cpu/winograd/gemm.h"
#include "backend/cpu/winograd/plan.h"
#include "backend/cpu/winograd/transforms.h"
#include "backend/cpu/winograd/vec.h"
#include "core/image_tree.h"

namespace lockstep {

namespace {

using namespace winograd;

/// With vectors of kLanes floats.
template <std::int64_t kLanes>
class WinogradConvolution final : public Convolution {
 public:
  WinogradConvolution(const ConvGeometry& geometry, const Shape& input, int threads)
      : geometry_(geometry),
        threads_(threads),
        in_(padded(geometry.in_channels)),
        out_(padded(geometry.out_channels)),
        block_(tiles_per_block(in_ + out_, kBlockBytes, Products::kRows)),
        images_(input.batch()),
        plan_(geometry, TileGrid(geometry.output_shape(input)).count / images_) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool strided) const override;
  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override;
  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override;
  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override;

 private:
  using Products = winograd::Products<kLanes>;
  using TileTransforms = winograd::TileTransforms<kLanes>;

  /// One thread's transformed tiles.
  std::int64_t block_floats() const {
    return std::max(
        point_floats(block_, in_) + point_floats(block_, out_),
        point_floats(plan_.block, plan_.in.size()) + point_floats(plan_.block, plan_.out.size()));
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
  void convolve_block(const Task& task, std::int64_t first, float* block) const;
  /// One sum of the gradient of the weights.
  struct SumTask {
    const Tensor& x;
    const Tensor& grad_y;
    Slice in, out;
    TileRange tiles;
  };
  void sum_tiles(const SumTask& task, float* sum, float* block) const;
  void finish_image(const Slice& out, std::int64_t channel, const float* sums,
                    float* gradient) const;
  std::int64_t row_floats() const { return 9 * geometry_.in_channels; }

  const ConvGeometry geometry_;
  const int threads_;
  const std::int64_t in_, out_;  // padded channels
  const std::int64_t block_;     // tiles
  const std::int64_t images_;    // at most
  const WeightPlan plan_;
};

template <std::int64_t kLanes>
std::size_t WinogradConvolution<kLanes>::scratch_bytes(ConvPass pass, bool) const {
  std::int64_t floats = threads_ * block_floats();
  if (pass == ConvPass::kBackwardWeights) {
    floats += plan_.wave(images_) * plan_.sums() * plan_.sum_floats;
    floats += (image_tree_nodes(images_) * plan_.out.size() + threads_) * row_floats();
  } else {
    floats += point_floats(in_, out_);
  }
  return static_cast<std::size_t>(floats) * sizeof(float);
}

template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::forward(const Tensor& x, const float* weight, const float* bias,
                                          const Tensor& y, void* scratch, const RowsDone& done) {
  const std::int64_t in = geometry_.in_channels;
  const KernelSource kernels{weight, in, 9, geometry_.out_channels, 9 * in, false};
  convolve(x, geometry_.padding_h, geometry_.padding_w, kernels, bias, y,
           static_cast<float*>(scratch), done);
}

template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::backward_data(const Tensor& grad_y, const float* weight,
                                                const Tensor& grad_x, void* scratch) {
  // The transposed convolution: kernels turned by 180 degrees, channels exchanged, and the padding
  // that makes the output of this as large as the input of the forward pass.
  const std::int64_t in = geometry_.in_channels;
  const KernelSource kernels{weight, geometry_.out_channels, 9 * in, in, 9, true};
  convolve(grad_y, 2 - geometry_.padding_h, 2 - geometry_.padding_w, kernels, nullptr, grad_x,
           static_cast<float*>(scratch), nullptr);
}

template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::convolve(const Tensor& x, std::int64_t padding_h,
                                           std::int64_t padding_w, const KernelSource& kernels,
                                           const float* bias, const Tensor& y, float* scratch,
                                           const RowsDone& done) const {
  const std::int64_t depth = padded(kernels.depth);
  const std::int64_t lanes = padded(kernels.lanes);
  const PointKernels u{scratch, point_stride(depth, lanes), depth, lanes, Products::kPanel};
  const Task task{x, padding_h, padding_w, bias, y, done, TileGrid(y.shape), u};
  float* blocks = scratch + kPoints * u.stride;
  // Neighbouring blocks go to one thread, which prefetches; a few turns per thread even out its
  // delays.
  const std::int64_t count = (task.grid.count + block_ - 1) / block_;
  const std::int64_t turn = std::max<std::int64_t>(count / (8 * threads_), 1);
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
  {
#pragma omp for schedule(static)
    for (std::int64_t lane = 0; lane < lanes; lane += kKernelLanes) {
      transform_kernels(kernels, lane, u);
    }
#pragma omp for schedule(dynamic, turn)
    for (std::int64_t index = 0; index < count; ++index) {
      convolve_block(task, index * block_, blocks + omp_get_thread_num() * block_floats());
    }
  }
}

template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::convolve_block(const Task& task, std::int64_t first,
                                                 float* block) const {
  const PointKernels& u = task.kernels;
  const PointTiles v{block, point_stride(block_, u.depth), u.depth};
  const PointTiles m{block + kPoints * v.stride, point_stride(block_, u.lanes), u.lanes};
  const TileRange range = task.grid.range(first, block_);
  const TileRange next = task.grid.range(first + block_, block_);
  TileTransforms::input(task.x, task.padding_h, task.padding_w, task.grid, range, v);
  // The micro-kernel computes whole groups of rows; what is left of a former block beyond the
  // range would do no harm, but be work on undefined values.
  const std::int64_t rows = (range.count + Products::kRows - 1) / Products::kRows * Products::kRows;
  for (std::int64_t p = 0; p < kPoints; ++p) {
    float* a = v.data + p * v.stride;
    std::fill(a + range.count * u.depth, a + rows * u.depth, 0.0F);
    Products::multiply(a, u.data + p * u.stride, m.data + p * m.stride, rows, u.depth, u.lanes);
    if (p < kPrefetchShares) {
      prefetch_pixels(task.x, 2 - task.padding_h, task.grid, next, p);
      prefetch_pixels(task.y, 0, task.grid, range, p);
    }
  }
  TileTransforms::output(m, task.grid, range, task.bias, task.y);
  if (task.done) for_each_output_run(task.y.shape, task.grid, range, task.done);
}

// For a slice of the output's channels: sums of a wave of images on all threads, then each output
// channel's gradients of these images, one after another into the tree.
template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::backward_weights(const Tensor& x, const Tensor& grad_y,
                                                   float* grad_weight, void* scratch) {
  const std::int64_t images = x.shape.batch();
  if (images == 0) return;
  const std::int64_t wave = plan_.wave(images);
  const std::int64_t row = row_floats();
  const std::int64_t node = plan_.out.size() * row;
  auto* sums = static_cast<float*>(scratch);
  float* tree = sums + wave * plan_.sums() * plan_.sum_floats;
  float* rows = tree + image_tree_nodes(images) * node;
  float* blocks = rows + threads_ * row;
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
  for (std::int64_t slice = 0; slice < plan_.out.count(); ++slice) {
    const Slice out = plan_.out[slice];
    for (std::int64_t first = 0; first < images; first += wave) {
      const std::int64_t count = std::min(wave, images - first);
#pragma omp for schedule(dynamic)
      for (std::int64_t index = 0; index < count * plan_.sums(); ++index) {
        const std::int64_t image = first + index / plan_.sums();
        const std::int64_t sum = index % plan_.sums();
        const SumTask task{x, grad_y, plan_.in[sum / plan_.parts], out,
                           plan_.part(image, sum % plan_.parts)};
        sum_tiles(task, sums + index * plan_.sum_floats,
                  blocks + omp_get_thread_num() * block_floats());
      }
#pragma omp for schedule(static)
      for (std::int64_t channel = 0; channel < out.count; ++channel) {
        float* gradient = rows + omp_get_thread_num() * row;
        float* nodes = tree + channel * row;
        for (std::int64_t i = 0; i < count; ++i) {
          finish_image(out, channel, sums + i * plan_.sums() * plan_.sum_floats, gradient);
          add_image(first + i, gradient, row, nodes, node);
        }
        if (first + count < images) continue;
        const float* total = finish_image_tree(images, row, nodes, node);
        float* result = grad_weight + (out.begin + channel) * row;
        for (std::int64_t i = 0; i < row; ++i) result[i] += total[i];
      }
    }
  }
}

template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::sum_tiles(const SumTask& task, float* sum, float* block) const {
  const auto& [x, grad_y, in, out, tiles] = task;
  const Tensor x_slice = x.channel_range(in.begin, in.count);
  const Tensor grad_slice = grad_y.channel_range(out.begin, out.count);
  const TileGrid grid(grad_y.shape);
  const PointTiles v{block, point_stride(plan_.block, in.padded), in.padded};
  const PointTiles z{block + kPoints * v.stride, point_stride(plan_.block, out.padded), out.padded};

  const std::int64_t end = tiles.first + tiles.count;
  for (std::int64_t first = tiles.first; first < end; first += plan_.block) {
    const TileRange range{first, std::min(plan_.block, end - first)};
    const TileRange next = grid.range(first + plan_.block, plan_.block);
    TileTransforms::input(x_slice, geometry_.padding_h, geometry_.padding_w, grid, range, v);
    TileTransforms::grad_output(grad_slice, grid, range, z);
    for (std::int64_t p = 0; p < kPoints; ++p) {
      Products::multiply_transposed(z.data + p * z.stride, v.data + p * v.stride,
                                    sum + p * point_stride(out.padded, in.padded), out.padded,
                                    range.count, in.padded, first > tiles.first);
      if (p < kPrefetchShares) {
        prefetch_pixels(x_slice, 2 - geometry_.padding_h, grid, next, p);
        prefetch_pixels(grad_slice, 0, grid, next, p);
      }
    }
  }
}

/// gradient [in, 3, 3] = that of one image for one output channel of the slice, from the image's
/// sums.
template <std::int64_t kLanes>
void WinogradConvolution<kLanes>::finish_image(const Slice& out, std::int64_t channel,
                                               const float* sums, float* gradient) const {
  std::fill_n(gradient, row_floats(), 0.0F);
  for (std::int64_t i = 0; i < plan_.in.count(); ++i) {
    const Slice in = plan_.in[i];
    const float* first = sums + i * plan_.parts * plan_.sum_floats;
    add_weight_gradient(first + channel * in.padded, plan_.parts, plan_.sum_floats,
                        point_stride(out.padded, in.padded), in.count, gradient + in.begin * 9);
  }
}

}  // namespace

bool winograd_supports(const ConvGeometry& geometry) {
  const auto is = [](std::int64_t h, std::int64_t w, std::int64_t value) {
    return h == value && w == value;
  };
  return is(geometry.kernel_h, geometry.kernel_w, 3) &&
         is(geometry.stride_h, geometry.stride_w, 1) &&
         is(geometry.dilation_h, geometry.dilation_w, 1) && geometry.groups == 1 &&
         geometry.padding_h <= 2 && geometry.padding_w <= 2;
}

bool winograd_pays(const ConvGeometry& geometry) {
  const std::int64_t in = geometry.in_channels;
  const std::int64_t out = geometry.out_channels;
  // Against the 2.25 times fewer products; half of that goes to the transforms.
  return winograd_supports(geometry) && in >= kChannelUnit && out >= kChannelUnit &&
         4 * padded(in) * padded(out) <= 5 * in * out;
}

int winograd_native_lanes() {
#ifdef __AVX512F__
  return 16;
#else
  return 8;
#endif
}

std::unique_ptr<Convolution> make_winograd_convolution(const ConvGeometry& geometry,
                                                       const Shape& input, int threads, int lanes) {
  LOCKSTEP_CHECK(winograd_supports(geometry), "no Winograd convolution for a kernel of ",
                 geometry.kernel_h, "x", geometry.kernel_w, ", stride ", geometry.stride_h, "x",
                 geometry.stride_w, ", groups ", geometry.groups);
  LOCKSTEP_CHECK(lanes == 8 || lanes == 16, "no Winograd convolution with vectors of ", lanes,
                 " floats; there are 8 and 16");
  if (lanes == 16) return std::make_unique<WinogradConvolution<16>>(geometry, input, threads);
  return std::make_unique<WinogradConvolution<8>>(geometry, input, threads);
}

}  // namespace lockstep
