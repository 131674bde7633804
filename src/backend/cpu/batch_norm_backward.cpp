// Gradients of BatchNorm (+ add, + ReLU). Two passes over memory: one reads x and dy, one reads
// both and writes dx. With dy' = dy masked by the ReLU, N rows in all and x^ = (x - mu) * invstd:
//   dbeta = sum dy',  dgamma = sum dy' * x^,
//   dx = gamma * invstd * (dy' - sum(dy') / N - (x - mu) * invstd^2 * sum(dy' * (x - mu)) / N).

#include "backend/cpu/batch_norm_kernels.h"
#include "backend/cpu/masked_gradient.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/moments.h"
#include "core/image_tree.h"

namespace lockstep {
namespace {

// sums += dy', products += dy' * (x - mu) of one row; both [width], as are the channel's constants.
template <Mask kMask, typename T>
void add_gradients(const RowPointers<T>& row, std::int64_t width, const ChannelScale& channel,
                   float* __restrict sums, float* __restrict products) {
  const float* __restrict mean = channel.mean;
  const float* __restrict scale = channel.scale;
  const float* __restrict shift = channel.shift;
  const RowPointers<T> at = row;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float x = at.x[i];
    const float grad = masked<kMask>(at.grad_y[i], x, at.y[i], mean[i], scale[i], shift[i]);
    sums[i] += grad;
    products[i] += grad * (x - mean[i]);
  }
}

// sums [2, k * C]: its first [2, C] = both sums over rows [begin, end).
template <typename T, Mask kMask>
void sum_run(const MaskedGradient& g, std::int64_t begin, std::int64_t end, std::int64_t k,
             float* sums) {
  const std::int64_t channels = g.x.shape.channels();
  const std::int64_t width = k * channels;
  float* products = sums + width;
  std::fill_n(sums, 2 * width, 0.0F);
  RowPointers<T> rows(g, begin);
  std::int64_t row = begin;
  for (; row + k <= end; row += k) {
    if (g.dense) {
      add_gradients<kMask>(rows, width, g.scale, sums, products);
      rows.advance(k);
      continue;
    }
    for (std::int64_t i = 0; i < k; ++i, rows.advance(1)) {
      rows.prefetch(0, channels);
      add_gradients<kMask>(rows, channels, g.scale, sums + i * channels, products + i * channels);
    }
  }
  fold_sums(sums, channels, k);
  for (; row < end; ++row, rows.advance(1)) {
    add_gradients<kMask>(rows, channels, g.scale, sums, sums + channels);
  }
}

// partial [2, C] = both sums over rows [begin, end); `sums` [2, k * C] is work space.
template <typename T, Mask kMask>
void block_sums(const MaskedGradient& g, std::int64_t begin, std::int64_t end, std::int64_t k,
                float* sums, double* partial) {
  const std::int64_t channels = g.x.shape.channels();
  std::fill_n(partial, 2 * channels, 0.0);
  for (std::int64_t run = begin; run < end; run += kRunRows) {
    sum_run<T, kMask>(g, run, std::min(run + kRunRows, end), k, sums);
#pragma omp simd
    for (std::int64_t i = 0; i < 2 * channels; ++i) partial[i] += sums[i];
  }
}

// The two per-channel terms of dx: `terms` [2, C] = (mean gradient, projection).
void merge_gradient_sums(const BatchNormBackwardApply& a, std::int64_t channels, float* terms) {
  const auto total = static_cast<double>(merge_sums(a.slots, channels, terms));
  for (std::int64_t c = 0; c < channels; ++c) {
    float& mean_gradient = terms[c];
    float& projection = terms[channels + c];
    mean_gradient = static_cast<float>(mean_gradient / total);
    projection = static_cast<float>(static_cast<double>(a.saved.data[2 * channels + c]) *
                                    projection / total);
  }
}

// The sums of all blocks of one part, in block order, and `affine` [2, C], what they are of the
// gradients of beta and gamma.
void finish_part(const BatchNormBackwardReduce& a, const RowBlocks& blocks, std::int64_t part,
                 std::int64_t channels, const ReductionScratch& work, float* affine) {
  const std::int64_t begin = part * blocks.per_part;
  const std::int64_t end = begin + blocks.per_part;
  float* sums = a.sums + part * 2 * channels;
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    double product = 0;
    for (std::int64_t b = begin; b < end; ++b) {
      sum += work.partial(b)[c];
      product += work.partial(b)[channels + c];
    }
    sums[c] = affine[c] = static_cast<float>(sum);
    sums[channels + c] = static_cast<float>(product);
    affine[channels + c] = static_cast<float>(product * a.saved.data[channels + c]);
  }
}

// The gradients of gamma and beta += those of the parts, affine [parts, 2, C].
void add_affine(const BatchNormBackwardReduce& a, std::int64_t channels, const float* affine,
                float* nodes) {
  if (a.grad_weight == nullptr) return;
  const std::int64_t size = 2 * channels;
  for (std::int64_t part = 0; part < a.parts; ++part) {
    add_image(part, affine + part * size, size, nodes, size);
  }
  const float* total = finish_image_tree(a.parts, size, nodes, size);
  for (std::int64_t c = 0; c < channels; ++c) {
    a.grad_bias[c] += total[c];
    a.grad_weight[c] += total[channels + c];
  }
}

}  // namespace

void CpuNorms::batch_norm_backward_reduce(const BatchNormBackwardReduce& a) {
  check_operands(a);
  const std::int64_t channels = a.x.shape.channels();
  const RowBlocks blocks(a.x.shape.rows(), a.parts);
  const std::int64_t k = rows_per_pass(channels);
  const std::size_t reduction_bytes = ReductionScratch::bytes(blocks, channels, k);
  const std::size_t scale_bytes = ChannelScale::bytes(channels, k);
  const std::int64_t affine_size = 2 * channels;
  const std::int64_t affine_floats = (a.parts + image_tree_nodes(a.parts)) * affine_size;
  auto* memory = static_cast<std::byte*>(cpu_.scratch(
      reduction_bytes + scale_bytes + static_cast<std::size_t>(affine_floats) * sizeof(float)));
  const ReductionScratch work(memory, blocks, channels, k);
  const ChannelScale scale(memory + reduction_bytes, a.saved.data, a.saved.data + channels,
                           a.affine, channels, k);
  auto* affine = reinterpret_cast<float*>(memory + reduction_bytes + scale_bytes);
  const MaskedGradient gradient{a.x, a.grad_y, a.y, scale};
  const auto kernel = with_element_type(a.x.dtype, [&]<typename T>(T) {
    return choose_mask(a.relu, a.y, block_sums<T, Mask::kNone>, block_sums<T, Mask::kFromX>,
                       block_sums<T, Mask::kFromY>);
  });
  parallel_for(blocks.count, blocks.block_rows * channels, cpu_.threads(),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t b = first; b < last; ++b) {
                   kernel(gradient, blocks.begin(b), blocks.end(b), k, work.run(b),
                          work.partial(b));
                 }
               });
  parallel_for(a.parts, blocks.per_part * affine_size, cpu_.threads(),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t part = first; part < last; ++part) {
                   finish_part(a, blocks, part, channels, work, affine + part * affine_size);
                 }
               });
  add_affine(a, channels, affine, affine + a.parts * affine_size);
}

void CpuNorms::batch_norm_backward_apply(const BatchNormBackwardApply& a) {
  check_operands(a);
  if (a.x.shape.rows() == 0) return;
  const std::int64_t channels = a.x.shape.channels();
  auto* memory =
      static_cast<float*>(cpu_.scratch(5 * static_cast<std::size_t>(channels) * sizeof(float)));
  float* mean_gradient = memory + 3 * channels;
  float* projection = mean_gradient + channels;
  merge_gradient_sums(a, channels, mean_gradient);
  const ChannelScale scale(memory, a.saved.data, a.saved.data + channels, a.affine, channels);
  write_input_gradient<BatchNormInputGradient>({{a.x, a.grad_y, a.y, scale},
                                                mean_gradient,
                                                projection,
                                                a.grad_x,
                                                a.grad_residual,
                                                a.accumulate_residual},
                                               a.relu, cpu_.threads());
}

}  // namespace lockstep
