#include "backend/cpu/conv/dnnl_matmul.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl_version.h>

#include <algorithm>
#include <exception>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/bfloat16.h"
#include "backend/cpu/conv/dnnl.h"
#include "backend/cpu/conv/dnnl_pass.h"
#include "backend/cpu/conv/products/pixels.h"
#include "backend/cpu/conv/products/slices.h"
#include "backend/cpu/conv/products/weight_gradient.h"
#include "backend/cpu/conv/trial_values.h"
#include "backend/cpu/element.h"
#include "backend/cpu/parallel_for.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace dnnl_pass;
using matmul::Pixels;
using matmul::Slice;
using matmul::Slices;
using matmul::SumTask;
using matmul::Tap;
using matmul::WeightGradient;
using Type = memory::data_type;

// Pixels of a block: more where channels are so few that a product would be short.
constexpr std::int64_t kFewestPixels = 128, kMostPixels = 1024, kBlockValues = 1 << 16;
// Channels of a block of results, and of either side of a sum of the weights' gradient; of several
// positions of a kernel the sum is as many times larger.
constexpr std::int64_t kSliceChannels = 512, kSliceChannelsOfTaps = 256;
// Parts of an image's gradient, so that threads have work when images and slices are few.
constexpr std::int64_t kMaxParts = 8, kPixelsPerPart = 2048;

/// a / b, rounded up.
std::int64_t quotient(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Values of a piece of scratch memory.
BFloat16* take_values(Pieces& pieces, std::int64_t count) {
  return static_cast<BFloat16*>(pieces.take(static_cast<std::size_t>(count) * sizeof(BFloat16)));
}

/// Matrix products of some shapes, c = or += a * b + bias, each on the thread that asks for it.
class Products {
 public:
  explicit Products(int threads) : engine_(dnnl::engine::kind::cpu, 0) {
    for (int i = 0; i < threads; ++i) workers_.push_back({dnnl::stream(engine_), {}});
  }

  const dnnl::engine& engine() const { return engine_; }
  /// Of each thread.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  /// One more shape; b in the layout that comes back. `bias`: an empty description for none.
  memory::desc add_shape(const memory::desc& a, const memory::desc& b, const memory::desc& bias,
                         const memory::desc& c, bool add) {
    const OneThread of_each_product;
    dnnl::primitive_attr attr = user_scratchpad();
    if (add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attr.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(engine_, a, b, bias, c, attr);
#else
    const dnnl::matmul::primitive_desc desc({a, b, bias, c}, attr, engine_);
#endif
    Arguments arguments{{DNNL_ARG_SRC, a},
                        {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                        {DNNL_ARG_DST, c},
                        {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc()}};
    if (bias.get_size() > 0) arguments.emplace_back(DNNL_ARG_BIAS, bias);
    const dnnl::matmul product(desc);
    for (Worker& worker : workers_) worker.products.emplace_back(product, engine_, arguments);
    scratch_bytes_ = std::max(scratch_bytes_, desc.scratchpad_desc().get_size());
    return desc.weights_desc();
  }

  /// Of the index-th shape, by the calling thread of a parallel region. An exception waits for
  /// rethrow().
  void run(std::int64_t index, const void* a, const void* b, const float* bias, void* c,
           void* scratch) {
    try {
      const OneThread also_where_this_is_the_only_one;
      Worker& worker = workers_[static_cast<std::size_t>(omp_get_thread_num())];
      Executable& product = worker.products[static_cast<std::size_t>(index)];
      product.set(DNNL_ARG_SRC, a);
      product.set(DNNL_ARG_WEIGHTS, b);
      product.set(DNNL_ARG_DST, c);
      product.set(DNNL_ARG_SCRATCHPAD, scratch);
      if (bias != nullptr) product.set(DNNL_ARG_BIAS, bias);
      product.run(worker.stream);
    } catch (...) {
#pragma omp critical(lockstep_dnnl_failure)
      failure_ = std::current_exception();
    }
  }
  void rethrow() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  struct Worker {
    dnnl::stream stream;
    std::vector<Executable> products;
  };

  const dnnl::engine engine_;
  std::vector<Worker> workers_;
  std::size_t scratch_bytes_ = 0;
  std::exception_ptr failure_;
};

/// One of the two passes that write an image: rows of pixels times the weights. All blocks of an
/// image's pixels are of one shape, so that no bit depends on threads or on other images.
class RowProducts {
 public:
  /// `weights`: the strides of the weights as a matrix [depth, columns].
  RowProducts(std::int64_t pixels, std::int64_t depth, std::int64_t columns,
              const memory::dims& weights, bool bias, int threads)
      : pixels_(pixels),
        depth_(depth),
        columns_(columns),
        column_stride_(weights.back()),
        slices_(columns, kSliceChannels),
        blocks_(quotient(pixels, std::clamp(kBlockValues / std::max(depth, columns), kFewestPixels,
                                            kMostPixels))),
        rows_(quotient(pixels, blocks_)),
        threads_(threads),
        products_(threads),
        stream_(products_.engine()) {
    for (std::int64_t s = 0; s < slices_.count(); ++s) {
      const std::int64_t count = slices_[s].count;
      const memory::desc panel = products_.add_shape(
          {{rows_, depth}, Type::bf16, memory::dims{depth, 1}},
          {{depth, count}, Type::bf16, memory::format_tag::any},
          bias ? memory::desc({1, count}, Type::f32, memory::format_tag::ab) : memory::desc(),
          {{rows_, count}, Type::bf16, memory::dims{columns, 1}}, false);
      packs_.push_back(
          make_reorder({{depth, count}, Type::bf16, weights}, panel, products_.engine(), false));
    }
  }

  std::size_t scratch_bytes() const {
    Pieces pieces(nullptr);
    for (const Executable& pack : packs_) pieces.take(pack.bytes(DNNL_ARG_TO));
    Pieces packing = pieces;
    take_values(packing, depth_ * columns_);
    packing.take(packs_.front().bytes(DNNL_ARG_SCRATCHPAD));
    return std::max(packing.used(), pieces.used() + static_cast<std::size_t>(threads_) *
                                                        memory_of_thread(nullptr).bytes);
  }

  /// `from`, `to`: the first pixel where the rows of a tensor are dense and the products' own, else
  /// null; then read(row) says where one lies, and write(row, slice, values) takes one of a result.
  template <class Read, class Write>
  void run(std::int64_t images, const float* weight, const float* bias, const BFloat16* from,
           const Read& read, BFloat16* to, const Write& write, Pieces pieces) {
    pack(weight, pieces);
    auto* memory = static_cast<std::byte*>(pieces.take(0));
    const std::size_t thread_bytes = memory_of_thread(nullptr).bytes;
    const std::int64_t tasks = images * blocks_ * slices_.count();
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t s = task % slices_.count(), block = task / slices_.count();
      const Slice slice = slices_[s];
      const std::int64_t begin = block % blocks_ * rows_;
      const std::int64_t first = block / blocks_ * pixels_ + begin;
      const std::int64_t count = std::min(rows_, pixels_ - begin);
      const Memory own =
          memory_of_thread(memory + static_cast<std::size_t>(omp_get_thread_num()) * thread_bytes);
      const BFloat16* a = from + first * depth_;
      if (from == nullptr || count < rows_) {
        for (std::int64_t r = 0; r < count; ++r) {
          std::copy_n(read(first + r), depth_, own.rows + r * depth_);
        }
        std::fill_n(own.rows + count * depth_, (rows_ - count) * depth_, BFloat16{});
        a = own.rows;
      }
      const bool direct = to != nullptr && count == rows_;
      BFloat16* c = (direct ? to + first * columns_ : own.results) + slice.begin;
      products_.run(s, a, panels_[static_cast<std::size_t>(s)],
                    bias != nullptr ? bias + slice.begin : nullptr, c, own.scratch);
      for (std::int64_t r = 0; !direct && r < count; ++r) write(first + r, slice, c + r * columns_);
    }
    products_.rethrow();
  }

 private:
  /// Of a thread: rows and results that do not lie as a product wants them.
  struct Memory {
    BFloat16 *rows, *results;
    void* scratch;
    std::size_t bytes;
  };
  Memory memory_of_thread(std::byte* base) const {
    Pieces pieces(base);
    BFloat16* rows = take_values(pieces, rows_ * depth_);
    BFloat16* results = take_values(pieces, rows_ * columns_);
    void* scratch = pieces.take(products_.scratch_bytes());
    return {rows, results, scratch, pieces.used()};
  }

  /// The weights of each slice.
  void pack(const float* weight, Pieces& pieces) {
    panels_.clear();
    for (const Executable& each : packs_) panels_.push_back(pieces.take(each.bytes(DNNL_ARG_TO)));
    Pieces packing = pieces;
    const auto* rounded = static_cast<const BFloat16*>(
        rounded_weights(weight, {1, 1, columns_, depth_}, packing, threads_));
    for (std::int64_t s = 0; s < slices_.count(); ++s) {
      const auto index = static_cast<std::size_t>(s);
      run_reorder(packs_[index], rounded + slices_[s].begin * column_stride_, panels_[index],
                  packing, stream_);
    }
  }

  const std::int64_t pixels_, depth_, columns_, column_stride_;
  const Slices slices_;               // of the columns
  const std::int64_t blocks_, rows_;  // of an image's pixels, and of a block's
  const int threads_;
  Products products_;              // of each slice
  dnnl::stream stream_;            // that packs
  std::vector<Executable> packs_;  // of its weights
  std::vector<void*> panels_;      // where they are in this pass
};

/// The gradient of the weights: of each position of the kernel grad_y^T x of the pixels of a part
/// of an image, for slices of the channels of both.
class GradientProducts {
 public:
  GradientProducts(const ConvGeometry& geometry, const Shape& input, int threads)
      : taps_(geometry.kernel_h * geometry.kernel_w),
        out_(geometry.out_channels, taps_ == 1 ? kSliceChannels : kSliceChannelsOfTaps),
        in_(geometry.in_channels, taps_ == 1 ? kSliceChannels : kSliceChannelsOfTaps),
        pixels_(geometry, input, geometry.output_shape(input)),
        image_pixels_(geometry.output_shape(input).rows_per_sample()),
        gradient_(geometry, out_, in_,
                  std::clamp<std::int64_t>(image_pixels_ / kPixelsPerPart, 1, kMaxParts),
                  input.batch(), threads),
        depth_(quotient(image_pixels_, gradient_.parts())),
        products_(threads) {
    std::map<std::pair<std::int64_t, std::int64_t>, bool> tries;  // by the sizes of the slices
    for (std::int64_t o = 0; o < out_.count(); ++o) {
      for (std::int64_t i = 0; i < in_.count(); ++i) {
        const std::int64_t count = out_[o].count, channels = in_[i].count;
        const auto pair = static_cast<std::int64_t>(adds_whole_.size());
        const memory::desc y({count, depth_}, Type::bf16, memory::dims{1, count});
        const memory::desc x({depth_, channels}, Type::bf16, memory::dims{channels, 1});
        const memory::desc sums({count, channels}, Type::f32,
                                memory::dims{taps_ * in_[i].padded, 1});
        for (const bool add : {false, true}) products_.add_shape(y, x, {}, sums, add);
        const auto [tried, first] = tries.try_emplace({count, channels});
        if (first) tried->second = adds_whole(pair, out_[o], in_[i]);
        adds_whole_.push_back(tried->second);
      }
    }
  }

  std::size_t scratch_bytes() const {
    return static_cast<std::size_t>(gradient_.scratch_floats(sum_floats())) * sizeof(float);
  }

  /// grad_weight += the gradient.
  void run(const Tensor& x, const Tensor& grad_y, float* grad_weight, void* scratch) {
    const auto sum = [&](const SumTask& task, bool add, float* to, float* memory) {
      const std::int64_t begin = image_pixels_ * task.part / gradient_.parts();
      const std::int64_t count = image_pixels_ * (task.part + 1) / gradient_.parts() - begin;
      const std::int64_t first = task.image * image_pixels_ + begin;
      const std::int64_t pair =
          task.out.begin / out_.size() * in_.count() + task.in.begin / in_.size();
      const bool alone = add && !adds_whole_[static_cast<std::size_t>(pair)];
      Pieces pieces(memory);
      const Memory own = take_memory(pieces);
      for (std::int64_t p = 0; p < count; ++p) own.reads[p] = first + p;
      const std::span<const std::int64_t> reads(own.reads, own.reads + count);
      const BFloat16* y = rows_of(grad_y, reads, out_, task.out, own.y_rows);
      float* sums = alone ? own.sums : to;
      for (std::int64_t tap = 0; tap < taps_; ++tap) {
        pixels_.inputs(first, count, tap, own.reads);
        products_.run(2 * pair + (add && !alone ? 1 : 0), y,
                      rows_of(x, reads, in_, task.in, own.x_rows), nullptr,
                      sums + tap * task.in.padded, own.scratch);
      }
      if (alone) add_values(sums, task.out.count * taps_ * task.in.padded, to);
    };
    gradient_.add(x.shape.batch(), sum, sum_floats(), grad_weight, static_cast<float*>(scratch));
    products_.rethrow();
  }

 private:
  /// Of a task: which pixels a position of the kernel reads, rows that do not lie as a product
  /// wants them, and sums that are to be added.
  struct Memory {
    std::int64_t* reads;
    BFloat16 *y_rows, *x_rows;
    float* sums;
    void* scratch;
  };
  Memory take_memory(Pieces& pieces) const {
    void* reads = pieces.take(static_cast<std::size_t>(depth_) * sizeof(std::int64_t));
    BFloat16* y_rows = take_values(pieces, depth_ * out_.size());
    BFloat16* x_rows = take_values(pieces, depth_ * in_.size());
    const bool alone = std::ranges::count(adds_whole_, false) > 0;
    const std::int64_t floats = alone ? gradient_.slice_floats() : 0;
    void* sums = pieces.take(static_cast<std::size_t>(floats) * sizeof(float));
    return {static_cast<std::int64_t*>(reads), y_rows, x_rows, static_cast<float*>(sums),
            pieces.take(products_.scratch_bytes())};
  }

  static constexpr std::int64_t kDifferentPixels = 64;  // of a trial: random numbers take time

  /// Whether a product is complete before it is added, by trial: one over many pixels oneDNN may
  /// compute in parts, and add each of them.
  bool adds_whole(std::int64_t pair, const Slice& out, const Slice& in) {
    const std::int64_t row = taps_ * in.padded, floats = out.count * row;
    const TrialValues y(depth_ * out.count, 1 + depth_ / kDifferentPixels, DType::kBFloat16);
    const TrialValues x(depth_ * in.count, 1 + depth_ / kDifferentPixels, DType::kBFloat16);
    const TrialValues product(floats, 0), before(floats, out.count), sum(floats, out.count);
    const TrialValues scratch(static_cast<std::int64_t>(products_.scratch_bytes()) + 1, 0);
    products_.run(2 * pair, y.floats(), x.floats(), nullptr, product.floats(), scratch.floats());
    products_.run(2 * pair + 1, y.floats(), x.floats(), nullptr, sum.floats(), scratch.floats());
    products_.rethrow();
    for (std::int64_t i = 0; i < floats; ++i) {
      if (i % row >= in.count) continue;
      if (sum.floats()[i] != before.floats()[i] + product.floats()[i]) return false;
    }
    return true;
  }
  std::int64_t sum_floats() const {
    Pieces pieces(nullptr);
    take_memory(pieces);
    return static_cast<std::int64_t>(pieces.used() / sizeof(float));
  }

  /// The slice's channels of these pixels (-1: zeros), and zeros up to depth_ of them: where they
  /// are, or in the copy.
  const BFloat16* rows_of(const Tensor& tensor, std::span<const std::int64_t> pixels,
                          const Slices& slices, const Slice& slice, BFloat16* copy) const {
    const auto count = static_cast<std::int64_t>(pixels.size());
    const bool follow = taps_ == 1 && pixels.back() - pixels.front() == count - 1;
    if (follow && tensor.dense() && slices.count() == 1 && count == depth_) {
      return row_of<const BFloat16>(tensor, pixels.front());
    }
    BFloat16* to = copy;
    for (const std::int64_t pixel : pixels) {
      if (pixel < 0) {
        std::fill_n(to, slice.count, BFloat16{});
      } else {
        std::copy_n(row_of<const BFloat16>(tensor, pixel) + slice.begin, slice.count, to);
      }
      to += slice.count;
    }
    std::fill_n(to, (depth_ - count) * slice.count, BFloat16{});
    return copy;
  }

  const std::int64_t taps_;
  const Slices out_, in_;
  const Pixels pixels_;  // of any batch
  const std::int64_t image_pixels_;
  const WeightGradient gradient_;
  const std::int64_t depth_;      // pixels of a part
  Products products_;             // of each pair of slices, written and added
  std::vector<bool> adds_whole_;  // of each pair
};

class DnnlMatmulConvolution final : public Convolution {
 public:
  DnnlMatmulConvolution(const ConvGeometry& geometry, const Shape& input, int threads)
      : geometry_(geometry),
        input_(input),
        threads_(threads),
        pixels_(geometry, input, geometry.output_shape(input)),
        tap_{0, 0, 0, geometry.output_shape(input).height(), geometry.output_shape(input).width()},
        zero_bias_(static_cast<std::size_t>(geometry.out_channels), 0.0F) {}

  void prepare(ConvPass pass) override {
    const std::int64_t in = geometry_.in_channels, out = geometry_.out_channels;
    const std::int64_t pixels = geometry_.output_shape(input_).rows_per_sample();
    switch (pass) {
      case ConvPass::kForward:
        if (!forward_) forward_.emplace(pixels, in, out, memory::dims{1, in}, true, threads_);
        break;
      case ConvPass::kBackwardData:
        if (!data_) data_.emplace(pixels, out, in, memory::dims{in, 1}, false, threads_);
        break;
      case ConvPass::kBackwardWeights:
        if (!gradient_) gradient_.emplace(geometry_, input_, threads_);
        break;
    }
  }

  std::size_t scratch_bytes(ConvPass pass, bool) const override {
    switch (pass) {
      case ConvPass::kForward:
        return forward_->scratch_bytes();
      case ConvPass::kBackwardData:
        return data_->scratch_bytes();
      case ConvPass::kBackwardWeights:
        return gradient_->scratch_bytes();
    }
    return 0;
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    forward_->run(
        y.shape.batch(), weight, bias != nullptr ? bias : zero_bias_.data(),
        pixels_.same(tap_) ? dense(x) : nullptr,
        [&](std::int64_t row) { return row_of<const BFloat16>(x, pixels_.input(tap_, row)); },
        dense(y),
        [&](std::int64_t row, const Slice& slice, const BFloat16* values) {
          std::copy_n(values, slice.count, row_of<BFloat16>(y, row) + slice.begin);
        },
        Pieces(scratch));
    if (done) parallel_for(y.shape.rows(), y.shape.channels(), threads_, done);
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    data_->run(
        grad_y.shape.batch(), weight, nullptr, dense(grad_y),
        [&](std::int64_t row) { return row_of<const BFloat16>(grad_y, row); },
        pixels_.same(tap_) ? dense(grad_x) : nullptr,
        [&](std::int64_t row, const Slice& slice, const BFloat16* values) {
          const std::int64_t own = pixels_.input(tap_, row);
          pixels_.for_each_input(row, [&](std::int64_t pixel) {
            BFloat16* to = row_of<BFloat16>(grad_x, pixel) + slice.begin;
            if (pixel == own) {
              std::copy_n(values, slice.count, to);
            } else {
              std::fill_n(to, slice.count, BFloat16{});
            }
          });
        },
        Pieces(scratch));
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    gradient_->run(x, grad_y, grad_weight, scratch);
  }

 private:
  /// Null where rows do not follow one another.
  static BFloat16* dense(const Tensor& tensor) {
    return tensor.dense() ? static_cast<BFloat16*>(tensor.data) : nullptr;
  }

  const ConvGeometry geometry_;
  const Shape input_;
  const int threads_;
  const Pixels pixels_;  // of any batch
  const Tap tap_;        // that of a 1x1 kernel
  const std::vector<float> zero_bias_;
  std::optional<RowProducts> forward_, data_;
  std::optional<GradientProducts> gradient_;
};

}  // namespace

bool dnnl_matmul_supports(const ConvGeometry& g, ConvPass pass) {
  const bool pixel_by_pixel = g.kernel_h * g.kernel_w == 1 && g.padding_h == 0 && g.padding_w == 0;
  return g.groups == 1 && (pixel_by_pixel || pass == ConvPass::kBackwardWeights) &&
         dnnl_computes_bf16();
}

std::unique_ptr<Convolution> make_dnnl_matmul_convolution(const ConvGeometry& geometry,
                                                          const Shape& input, int threads) {
  LOCKSTEP_CHECK(dnnl_matmul_supports(geometry, ConvPass::kBackwardWeights),
                 "no products of bf16 matrices by oneDNN for a ", to_string(geometry));
  return std::make_unique<DnnlMatmulConvolution>(geometry, input, threads);
}

}  // namespace lockstep
