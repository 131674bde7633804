// Convolution: the BatchNorm behind it in inference, and the gradient of the bias.

#include <algorithm>
#include <bit>
#include <vector>

#include "backend/cpu/batch_norm_kernels.h"
#include "backend/cpu/conv/cache.h"
#include "backend/cpu/conv/choice.h"
#include "backend/cpu/conv/dnnl.h"
#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "core/image_tree.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRowsPerSum = 1024;  // fixed: the sums do not depend on the thread count

/// sums [C] = column sums of rows [begin, end).
template <typename T>
void sum_rows(const Tensor& tensor, std::int64_t begin, std::int64_t end, double* sums) {
  const std::int64_t channels = tensor.shape.channels();
  std::fill_n(sums, channels, 0.0);
  for (std::int64_t r = begin; r < end; ++r) {
    const T* source = row_of<const T>(tensor, r);
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) sums[c] += static_cast<double>(source[c]);
  }
}

/// Sums over the rows of each image, which are cut into parts.
struct ColumnSums {
  explicit ColumnSums(const Shape& shape)
      : images(shape.batch()),
        channels(shape.channels()),
        image_rows(shape.rows_per_sample()),
        parts((image_rows + kRowsPerSum - 1) / kRowsPerSum) {}

  std::size_t bytes() const {
    return static_cast<std::size_t>(images * parts * channels) * sizeof(double) +
           static_cast<std::size_t>((1 + image_tree_nodes(images)) * channels) * sizeof(float);
  }
  /// grad_bias += those of grad_y. `memory`: bytes().
  void add(const Tensor& grad_y, float* grad_bias, void* memory, int threads) const {
    auto* sums = static_cast<double*>(memory);  // [images, parts, C]
    const auto sum = with_element_type(grad_y.dtype, []<typename T>(T) { return sum_rows<T>; });
    parallel_for(images * parts, std::min(kRowsPerSum, image_rows) * channels, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t image = i / parts * image_rows;
                     const std::int64_t first = i % parts * kRowsPerSum;
                     sum(grad_y, image + first, image + std::min(image_rows, first + kRowsPerSum),
                         sums + i * channels);
                   }
                 });
    auto* image_sum = reinterpret_cast<float*>(sums + images * parts * channels);
    float* nodes = image_sum + channels;
    for (std::int64_t image = 0; image < images; ++image) {
      for (std::int64_t c = 0; c < channels; ++c) {
        double total = 0;
        for (std::int64_t p = 0; p < parts; ++p) total += sums[(image * parts + p) * channels + c];
        image_sum[c] = static_cast<float>(total);
      }
      add_image(image, image_sum, channels, nodes, channels);
    }
    const float* total = finish_image_tree(images, channels, nodes, channels);
    for (std::int64_t c = 0; c < channels; ++c) grad_bias[c] += total[c];
  }

  std::int64_t images, channels, image_rows, parts;
};

/// Copies in fp32 that stay in a cache, and how many times the weights they may be besides: what
/// weights cost is paid for every copy.
constexpr std::int64_t kCopiedFloats = 1 << 18, kTimesWeights = 4;

/// How many images are copied at once: so many as threads and a cache want. A power of two, so that
/// they are a node in the sum of the weights' gradients.
std::int64_t copied_images(const ConvGeometry& geometry, const Tensor& x, const Tensor& y,
                           int threads) {
  const std::int64_t images = x.shape.batch();
  const std::int64_t image = (x.shape.elements() + y.shape.elements()) / images;
  const std::int64_t most = kCopiedFloats + kTimesWeights * geometry.weight_elements();
  auto count = static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(threads)));
  while (2 * count * image <= most && count < images) count *= 2;
  return std::min(count, images);
}

}  // namespace

/// A pass over a batch by the implementation that was chosen: of all images at once where it reads
/// their type, else in parts of so many images, whose operands are copies in scratch memory.
class CpuConvolutions::Parts {
 public:
  Parts(CpuConvolutions& of, const ConvGeometry& geometry, ConvPass pass, const Tensor& x,
        const Tensor& y, bool training = false)
      : of_(of),
        geometry_(geometry),
        pass_(pass),
        x_(x),
        y_(y),
        training_(training),
        engine_(of.cache_->engine(geometry, x.shape, pass, x.dtype, training)),
        copies_(x.dtype != engine_.tensors),
        at_once_(copies_ ? copied_images(geometry, x, y, of.cpu_.threads()) : x.shape.batch()),
        count_((x.shape.batch() + at_once_ - 1) / at_once_) {}

  /// Whether the implementation is given copies.
  bool copies() const { return copies_; }
  /// Of the memory that run() takes.
  std::size_t bytes() const {
    const bool strided = !copies_ && (!x_.dense() || !y_.dense());
    std::size_t most = 0;
    for (const std::int64_t images : {at_once_, x_.shape.batch() - (count_ - 1) * at_once_}) {
      most = std::max(most, convolution(images).scratch_bytes(pass_, strided));
    }
    return copied(x_) + copied(y_) + sums() + most;
  }

  /// Calls compute(convolution, x, y, gradient, scratch) for every part. `gradient`: of the
  /// weights, which what it adds to belongs to.
  template <typename Compute>
  void run(void* memory, float* gradient, const Compute& compute) const {
    auto* copies = static_cast<std::byte*>(memory);
    if (sums() == 0) {
      for (std::int64_t part = 0; part < count_; ++part) run_part(part, copies, gradient, compute);
      return;
    }
    auto* nodes = reinterpret_cast<float*>(copies + copied(x_) + copied(y_));
    const std::int64_t size = geometry_.weight_elements();
    const auto node = [&](int index) { return nodes + index * size; };
    const auto join = [&](int index) { add_values(node(index + 1), size, node(index)); };
    for (std::int64_t part = 0; part < count_; ++part) {
      const auto take = [&](int index, bool first) {
        if (first) std::fill_n(node(index), size, 0.0F);
        run_part(part, copies, node(index), compute);
      };
      place_image(part, take, join);
    }
    join_nodes(count_, join);
    add_values(nodes, size, gradient);
  }

 private:
  template <typename Compute>
  void run_part(std::int64_t part, std::byte* copies, float* gradient,
                const Compute& compute) const {
    const std::int64_t first = part * at_once_;
    const std::int64_t images = std::min(at_once_, x_.shape.batch() - first);
    std::byte* y_copy = copies + copied(x_);
    const Tensor x = x_.sample_range(first, images), y = y_.sample_range(first, images);
    with_copies(
        pass_, x, copies_ ? Tensor(copies, x.shape) : x, y, copies_ ? Tensor(y_copy, y.shape) : y,
        of_.cpu_.threads(), [&](const Tensor& input, const Tensor& output) {
          compute(convolution(images), input, output, gradient, y_copy + copied(y_) + sums());
        });
  }
  Convolution& convolution(std::int64_t images) const {
    return of_.cache_->get(geometry_, x_.shape.with_batch(images), pass_, engine_,
                           of_.cpu_.threads(), training_);
  }
  /// Of a part's copy.
  std::size_t copied(const Tensor& tensor) const {
    return copies_ ? copy_bytes(tensor.shape.with_batch(at_once_)) : 0;
  }
  /// Of the gradients of several parts, which join in the images' tree.
  std::size_t sums() const {
    if (pass_ != ConvPass::kBackwardWeights || count_ == 1) return 0;
    return copy_bytes({image_tree_nodes(count_), geometry_.weight_elements()});
  }

  CpuConvolutions& of_;
  const ConvGeometry& geometry_;
  const ConvPass pass_;
  const Tensor &x_, &y_;
  const bool training_;  // whether it prepares one
  const ConvEngine& engine_;
  const bool copies_;
  const std::int64_t at_once_, count_;
};

CpuConvolutions::CpuConvolutions(CpuContext& cpu, bool exact)
    : cpu_(cpu), cache_(std::make_unique<ConvCache>(exact)) {}

CpuConvolutions::~CpuConvolutions() = default;

std::string CpuConvolutions::machine() { return conv_machine(); }

std::string CpuConvolutions::bf16_products() { return dnnl_bf16_instructions(); }

void CpuConvolutions::prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                     bool backward, bool grad_input) {
  check_prepare_conv2d(geometry, input, dtype);
  if (input.batch() == 0) return;
  const Tensor x(nullptr, input, dtype), y(nullptr, geometry.output_shape(input), dtype);
  std::vector<ConvPass> passes{ConvPass::kForward};
  if (backward) passes.push_back(ConvPass::kBackwardWeights);
  if (grad_input) passes.push_back(ConvPass::kBackwardData);
  for (const ConvPass pass : passes) {
    std::size_t bytes = Parts(*this, geometry, pass, x, y, backward).bytes();
    if (!backward) bytes += normalization_bytes(geometry.out_channels);  // conv2d_inference
    cpu_.scratch(bytes);
  }
  if (backward) cpu_.scratch(ColumnSums(geometry.output_shape(input)).bytes());
}

void CpuConvolutions::conv2d_forward(const ConvGeometry& geometry, const Tensor& x,
                                     const float* weight, const float* bias, const Tensor& y) {
  check_conv2d(ConvPass::kForward, geometry, x, weight, y);
  if (x.shape.batch() == 0) return;
  const Parts parts(*this, geometry, ConvPass::kForward, x, y);
  parts.run(cpu_.scratch(parts.bytes()), nullptr,
            [&](Convolution& convolution, const Tensor& from, const Tensor& to, float*,
                void* scratch) { convolution.forward(from, weight, bias, to, scratch); });
}

// Where whole images come out of the convolution it would be as good as a pass of its own.
bool CpuConvolutions::normalizes_in_convolution(const ConvGeometry& geometry, const Shape& input,
                                                DType dtype) const {
  return input.batch() > 0 && !cache_->engine(geometry, input, ConvPass::kForward, dtype).one_batch;
}

void CpuConvolutions::conv2d_inference(const ConvGeometry& geometry, const Tensor& x,
                                       const float* weight, const float* bias,
                                       const BatchNormInference& normalization) {
  check_conv2d_inference(geometry, x, weight, normalization);
  if (x.shape.batch() == 0) return;
  const Tensor& y = normalization.y;
  const std::size_t scales = normalization_bytes(y.shape.channels());
  const Parts parts(*this, geometry, ConvPass::kForward, x, y);
  auto* memory = static_cast<std::byte*>(cpu_.scratch(scales + parts.bytes()));
  Normalization n = normalization_of(normalization, memory);
  n.x = y;
  const RowsDone normalize = [&, rows = normalize_rows_of(n)](
                                 std::int64_t begin, std::int64_t end) { rows(n, begin, end); };
  const bool at_once = !parts.copies();  // else when they have been rounded
  parts.run(
      memory + scales, nullptr,
      [&](Convolution& convolution, const Tensor& from, const Tensor& to, float*, void* scratch) {
        convolution.forward(from, weight, bias, to, scratch, at_once ? normalize : nullptr);
      });
  if (!at_once) parallel_for(y.shape.rows(), y.shape.channels(), cpu_.threads(), normalize);
}

void CpuConvolutions::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                           const float* weight, const Tensor& grad_x) {
  check_conv2d(ConvPass::kBackwardData, geometry, grad_x, weight, grad_y);
  if (grad_x.shape.batch() == 0) return;
  const Parts parts(*this, geometry, ConvPass::kBackwardData, grad_x, grad_y);
  parts.run(cpu_.scratch(parts.bytes()), nullptr,
            [&](Convolution& convolution, const Tensor& to, const Tensor& from, float*,
                void* scratch) { convolution.backward_data(from, weight, to, scratch); });
}

void CpuConvolutions::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                              const Tensor& grad_y, float* grad_weight,
                                              float* grad_bias) {
  check_conv2d(ConvPass::kBackwardWeights, geometry, x, grad_weight, grad_y);
  if (x.shape.batch() == 0) return;
  const Parts parts(*this, geometry, ConvPass::kBackwardWeights, x, grad_y);
  parts.run(cpu_.scratch(parts.bytes()), grad_weight,
            [](Convolution& convolution, const Tensor& from, const Tensor& gradient, float* sum,
               void* scratch) { convolution.backward_weights(from, gradient, sum, scratch); });
  if (grad_bias == nullptr) return;
  const ColumnSums sums(grad_y.shape);
  sums.add(grad_y, grad_bias, cpu_.scratch(sums.bytes()), cpu_.threads());
}

}  // namespace lockstep
