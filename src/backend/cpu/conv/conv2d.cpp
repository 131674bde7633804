// Convolution: checks, the BatchNorm behind it in inference, and the gradient of the bias.

#include <algorithm>
#include <vector>

#include "backend/cpu/batch_norm_kernels.h"
#include "backend/cpu/conv/bf16/instructions.h"
#include "backend/cpu/conv/cache.h"
#include "backend/cpu/conv/choice.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"
#include "core/image_tree.h"

namespace lockstep {
namespace {

void check_operands(const ConvGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_conv2d(geometry, x.shape, y.shape);
  check_fp32("conv2d", {&x, &y});
}

constexpr std::int64_t kRowsPerSum = 1024;  // fixed: the sums do not depend on the thread count

/// sums [C] = column sums of rows [begin, end).
void sum_rows(const Tensor& tensor, std::int64_t begin, std::int64_t end, double* sums) {
  const std::int64_t channels = tensor.shape.channels();
  std::fill_n(sums, channels, 0.0);
  for (std::int64_t r = begin; r < end; ++r) {
    const float* source = tensor.floats() + r * tensor.row_stride;
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
    parallel_for(images * parts, std::min(kRowsPerSum, image_rows) * channels, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t image = i / parts * image_rows;
                     const std::int64_t first = i % parts * kRowsPerSum;
                     sum_rows(grad_y, image + first,
                              image + std::min(image_rows, first + kRowsPerSum),
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

}  // namespace

CpuConvolutions::CpuConvolutions(CpuContext& cpu, bool bf16)
    : cpu_(cpu), bf16_(bf16), cache_(std::make_unique<ConvCache>(bf16)) {}

CpuConvolutions::~CpuConvolutions() = default;

std::string CpuConvolutions::machine() { return conv_machine(); }

std::string CpuConvolutions::bf16_products() {
  switch (bf16::best_instructions()) {
    case bf16::Instructions::kAmx:
      return "AMX";
    case bf16::Instructions::kAvx512Bf16:
      return "AVX512-BF16";
    case bf16::Instructions::kAny:
      break;
  }
  return "";
}

void CpuConvolutions::prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                     bool backward, bool grad_input) {
  LOCKSTEP_CHECK(dtype == DType::kFloat32, "conv2d: the CPU expects activations in fp32, got ",
                 to_string(dtype), "; only GPUs compute on bf16 and fp16");
  if (input.batch() == 0) return;
  std::vector<ConvPass> passes{ConvPass::kForward};
  if (backward) passes.push_back(ConvPass::kBackwardWeights);
  if (grad_input) passes.push_back(ConvPass::kBackwardData);
  for (const ConvPass pass : passes) {
    std::size_t bytes =
        cache_->get(geometry, input, pass, cpu_.threads()).scratch_bytes(pass, false);
    if (!backward) bytes += normalization_bytes(geometry.out_channels);  // conv2d_inference
    cpu_.scratch(bytes);
  }
  if (backward) cpu_.scratch(ColumnSums(geometry.output_shape(input)).bytes());
}

void CpuConvolutions::conv2d_forward(const ConvGeometry& geometry, const Tensor& x,
                                     const float* weight, const float* bias, const Tensor& y) {
  check_conv2d_forward(x, weight, y);
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, y);
  constexpr auto kPass = ConvPass::kForward;
  Convolution& convolution = cache_->get(geometry, x.shape, kPass, cpu_.threads());
  const bool strided = !x.dense() || !y.dense();
  convolution.forward(x, weight, bias, y, cpu_.scratch(convolution.scratch_bytes(kPass, strided)));
}

// Where whole images come out of the convolution it would be as good as a pass of its own.
bool CpuConvolutions::normalizes_in_convolution(const ConvGeometry& geometry,
                                                const Shape& input) const {
  return input.batch() > 0 &&
         !choose_conv_engine(geometry, input, ConvPass::kForward, bf16_).one_batch;
}

void CpuConvolutions::conv2d_inference(const ConvGeometry& geometry, const Tensor& x,
                                       const float* weight, const float* bias,
                                       const BatchNormInference& normalization) {
  check_conv2d_inference(x, weight, normalization);
  if (x.shape.batch() == 0) return;
  const Tensor& y = normalization.y;
  check_operands(geometry, x, y);
  check_same_shape("conv2d_inference", {&y, &normalization.residual});
  check_fp32("conv2d_inference", {&normalization.residual});
  constexpr auto kPass = ConvPass::kForward;
  Convolution& convolution = cache_->get(geometry, x.shape, kPass, cpu_.threads());
  const bool strided = !x.dense() || !y.dense();
  const std::size_t scales = normalization_bytes(y.shape.channels());
  auto* memory =
      static_cast<std::byte*>(cpu_.scratch(scales + convolution.scratch_bytes(kPass, strided)));
  Normalization n = normalization_of(normalization, memory);
  n.x = y;
  const NormalizeRows rows = normalize_rows_of(n);
  convolution.forward(x, weight, bias, y, memory + scales,
                      [&](std::int64_t begin, std::int64_t end) { rows(n, begin, end); });
}

void CpuConvolutions::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                           const float* weight, const Tensor& grad_x) {
  check_conv2d_backward_data(grad_y, weight, grad_x);
  if (grad_x.shape.batch() == 0) return;
  check_operands(geometry, grad_x, grad_y);
  constexpr auto kPass = ConvPass::kBackwardData;
  Convolution& convolution = cache_->get(geometry, grad_x.shape, kPass, cpu_.threads());
  const bool strided = !grad_y.dense() || !grad_x.dense();
  convolution.backward_data(grad_y, weight, grad_x,
                            cpu_.scratch(convolution.scratch_bytes(kPass, strided)));
}

void CpuConvolutions::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                              const Tensor& grad_y, float* grad_weight,
                                              float* grad_bias) {
  check_conv2d_backward_weights(x, grad_y, grad_weight);
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, grad_y);
  constexpr auto kPass = ConvPass::kBackwardWeights;
  Convolution& convolution = cache_->get(geometry, x.shape, kPass, cpu_.threads());
  const bool strided = !x.dense() || !grad_y.dense();
  convolution.backward_weights(x, grad_y, grad_weight,
                               cpu_.scratch(convolution.scratch_bytes(kPass, strided)));
  if (grad_bias == nullptr) return;
  const ColumnSums sums(grad_y.shape);
  sums.add(grad_y, grad_bias, cpu_.scratch(sums.bytes()), cpu_.threads());
}

}  // namespace lockstep
