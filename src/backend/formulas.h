#pragma once
// Element formulas, written once and used by the CPU and the GPU code (those of an optimizer are in
// its header, lockstep/optim). No state, no includes of a
// device. Products and sums are fused by hand (std::fma): compilers would choose differently where
// to fuse, and the same bits are promised on every device.

#include <cmath>
#include <cstdint>
#include <limits>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Count, mean and sum of squared deviations of one channel.
struct ChannelMoments {
  std::int64_t count = 0;
  double mean = 0;
  double m2 = 0;
};

/// What joins a set to those before it: a number that depends on the counts alone.
struct MomentsWeights {
  double before = 0;  // samples before the set
  double share = 1;   // of the set in the union
};

LOCKSTEP_HOST_DEVICE inline MomentsWeights moments_weights(std::int64_t before,
                                                           std::int64_t count) {
  const auto na = static_cast<double>(before);
  const auto nb = static_cast<double>(count);
  return {na, nb / (na + nb)};
}

/// Chan, Golub and LeVeque (1979), eq. 2.1: (mean, m2) becomes that of the union with a disjoint
/// set. REQUIRES: both sets have samples.
LOCKSTEP_HOST_DEVICE inline void join_moments(double& mean, double& m2, double set_mean,
                                              double set_m2, const MomentsWeights& weights) {
  const double delta = set_mean - mean;
  mean = std::fma(delta, weights.share, mean);
  m2 = std::fma(delta * delta * weights.before, weights.share, m2 + set_m2);
}

/// Moments of the union of two disjoint sets. Exact in counts; a set without samples changes
/// nothing.
LOCKSTEP_HOST_DEVICE inline ChannelMoments merge(const ChannelMoments& a, const ChannelMoments& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  ChannelMoments both{a.count + b.count, a.mean, a.m2};
  join_moments(both.mean, both.m2, b.mean, b.m2, moments_weights(a.count, b.count));
  return both;
}

/// What a bound of the gradient's norm multiplies it by (torch.nn.utils.clip_grad_norm_): 1 where
/// the norm is within, NaN where it is none.
LOCKSTEP_HOST_DEVICE inline float factor_for_norm(double norm, float max_norm) {
  const double factor = static_cast<double>(max_norm) / (norm + 1e-6);
  return factor >= 1 ? 1.0F : static_cast<float>(factor);
}

/// factor * gradient, brought to [-most, most]; NaN stays.
LOCKSTEP_HOST_DEVICE inline float clipped(float gradient, float factor, float most) {
  const float scaled = factor * gradient;
  return scaled > most ? most : scaled < -most ? -most : scaled;
}

/// `width` channels whose moments lie from `means` and, [C] further on, get those of all of them;
/// `rows` lie behind each.
LOCKSTEP_HOST_DEVICE inline void join_group(float* means, std::int64_t width, std::int64_t channels,
                                            std::int64_t rows) {
  float* m2s = means + channels;
  double mean = means[0];
  double m2 = m2s[0];
  for (std::int64_t i = 1; i < width; ++i) {
    join_moments(mean, m2, means[i], m2s[i], moments_weights(i * rows, rows));
  }
  for (std::int64_t i = 0; i < width; ++i) {
    means[i] = static_cast<float>(mean);
    m2s[i] = static_cast<float>(m2);
  }
}

/// A moving average of a weight, of which the new one has this share.
LOCKSTEP_HOST_DEVICE inline float moved_average(float average, float weight, float share) {
  return share == 1 ? weight : std::fma(share, weight - average, average);
}

/// Inverse standard deviation from the biased variance.
LOCKSTEP_HOST_DEVICE inline double inverse_std(double var, double eps, EpsMode mode) {
  if (mode == EpsMode::kAdd) return 1.0 / std::sqrt(var + eps);
  return 1.0 / std::sqrt(var > eps ? var : eps);
}

/// Whether the gradient flows through the variance: `clamp` stops it where eps replaced the
/// variance.
LOCKSTEP_HOST_DEVICE inline bool variance_has_gradient(double var, double eps, EpsMode mode) {
  return mode == EpsMode::kAdd || var > eps;
}

/// (x - mean) * scale + shift, scale = gamma * invstd. Not x * scale + shift': that cancels when
/// |mean| is much larger than the standard deviation. The backward pass recomputes the ReLU mask by
/// this expression.
LOCKSTEP_HOST_DEVICE inline float normalize(float x, float mean, float scale, float shift) {
  return std::fma(x - mean, scale, shift);
}

/// dx of an element of BatchNorm, where `centred` is x - mu, of a channel's mean gradient
/// sum(dy') / N and projection invstd^2 * sum(dy' * (x - mu)) / N.
struct BatchNormInputGradient {
  LOCKSTEP_HOST_DEVICE static float of(float scale, float grad, float centred, float mean_gradient,
                                       float projection) {
    return scale * (grad - mean_gradient - centred * projection);
  }
};

/// The same of GroupNorm, of what spread_group_gradient() writes.
struct GroupNormInputGradient {
  LOCKSTEP_HOST_DEVICE static float of(float scale, float grad, float centred, float offset,
                                       float slope) {
    return scale * grad - (offset + centred * slope);
  }
};

/// What the channels of a group have in common in dx = gamma * invstd * dy' - (offset + (x - mu) *
/// slope), where a group has M values: offset = invstd * sum(gamma * dy') / M and slope =
/// invstd^3 * sum(gamma * dy' * (x - mu)) / M. It takes the place of the sums [2, C] of dy' and of
/// dy' * (x - mu) of the `width` channels from `first` on. gamma [C] may be null.
LOCKSTEP_HOST_DEVICE inline void spread_group_gradient(float* sums, const float* saved,
                                                       const float* gamma, std::int64_t first,
                                                       std::int64_t width, std::int64_t channels,
                                                       std::int64_t rows) {
  double sum = 0;
  double product = 0;
  for (std::int64_t c = first; c < first + width; ++c) {
    const double weight = gamma == nullptr ? 1.0 : static_cast<double>(gamma[c]);
    sum = std::fma(weight, static_cast<double>(sums[c]), sum);
    product = std::fma(weight, static_cast<double>(sums[channels + c]), product);
  }
  const double share =
      static_cast<double>(saved[channels + first]) / static_cast<double>(rows * width);
  const double inverse_variance = saved[2 * channels + first];
  const auto offset = static_cast<float>(share * sum);
  const auto slope = static_cast<float>(share * inverse_variance * product);
  for (std::int64_t c = first; c < first + width; ++c) {
    sums[c] = offset;
    sums[channels + c] = slope;
  }
}

/// BatchRenormCorrection's r and d of one channel.
struct RenormFactors {
  double r, d;
};

/// Written so that NaN passes.
LOCKSTEP_HOST_DEVICE inline double clip(double value, double lo, double hi) {
  return value < lo ? lo : value > hi ? hi : value;
}

LOCKSTEP_HOST_DEVICE inline RenormFactors renorm_factors(const BatchRenormCorrection& a,
                                                         double mean, double var,
                                                         double running_mean, double running_var) {
  const double running_invstd = inverse_std(running_var, a.eps, a.eps_mode);
  const double r = running_invstd / inverse_std(var, a.eps, a.eps_mode);
  const double d = (mean - running_mean) * running_invstd;
  return {clip(r, 1 / a.max_r, a.max_r), clip(d, -a.max_d, a.max_d)};
}

/// One channel of a batch of `count` rows and these moments.
LOCKSTEP_HOST_DEVICE inline void correct_channel(const BatchRenormCorrection& a, std::int64_t c,
                                                 double mean, double m2, std::int64_t count) {
  const RenormFactors factors =
      renorm_factors(a, mean, m2 / static_cast<double>(count), a.running_mean[c], a.running_var[c]);
  const double weight = a.affine.weight == nullptr ? 1.0 : static_cast<double>(a.affine.weight[c]);
  const double bias = a.affine.bias == nullptr ? 0.0 : static_cast<double>(a.affine.bias[c]);
  a.correction[c] = static_cast<float>(factors.r);
  a.correction[a.channels + c] = static_cast<float>(factors.d);
  a.corrected[c] = static_cast<float>(weight * factors.r);
  a.corrected[a.channels + c] = static_cast<float>(std::fma(weight, factors.d, bias));
}

LOCKSTEP_HOST_DEVICE inline void add_corrected_gradient(const BatchRenormGradient& a,
                                                        std::int64_t c) {
  const float of_bias = a.corrected[a.channels + c];
  a.grad_weight[c] +=
      std::fma(a.correction[c], a.corrected[c], a.correction[a.channels + c] * of_bias);
  a.grad_bias[c] += of_bias;
}

/// running = (1 - momentum) * running + momentum * value.
LOCKSTEP_HOST_DEVICE inline float update_running(float running, double value, double momentum) {
  return static_cast<float>(
      std::fma(1.0 - momentum, static_cast<double>(running), momentum * value));
}

/// What a sum begins the next step with (SumOperations::reset_sums).
LOCKSTEP_HOST_DEVICE inline double reset_sum(double sum) { return std::isfinite(sum) ? 0 : sum; }

/// What GradientCheck leaves where loss or gradients are not finite.
LOCKSTEP_HOST_DEVICE inline double bad_guard(bool loss_is_finite) {
  return loss_is_finite ? std::numeric_limits<double>::infinity()
                        : std::numeric_limits<double>::quiet_NaN();
}

/// GradScaler's rule: half the scale after gradients that are not finite, twice the scale after
/// `growth_interval` good steps in a row. `guards`: the sum of all ranks' (GradientCheck). A loss
/// that is not finite is of no concern to the scale. Below 1 the scale does not fall: gradients
/// that are not finite without being magnified have another cause.
LOCKSTEP_HOST_DEVICE inline LossScaleState next_loss_scale(LossScaleState state, double guards,
                                                           std::int64_t growth_interval) {
  if (std::isnan(guards)) return state;
  if (guards != 0) {
    ++state.skipped;
    state.good_steps = 0;
    if (state.scale > 1.0F) state.scale *= 0.5F;
  } else if (++state.good_steps == growth_interval) {
    state.good_steps = 0;
    if (std::isfinite(2.0F * state.scale)) state.scale *= 2.0F;
  }
  state.inverse = 1.0F / state.scale;
  return state;
}

// --- functions of one element, called by the CPU's loops and by the GPU's threads

struct Identity {
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x; }
};

/// Written so that NaN passes: a broken activation must reach the loss, where it is noticed.
struct Relu {
  LOCKSTEP_HOST_DEVICE float operator()(float x) const { return x < 0.0F ? 0.0F : x; }
};

/// From the ReLU's result and the gradient of it.
struct ReluGradient {
  LOCKSTEP_HOST_DEVICE float operator()(float y, float grad_y) const {
    return y <= 0.0F ? 0.0F : grad_y;
  }
};

struct Add {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

/// Dropout of an element that drew `uniform`. The kept value is rounded before anything is added to
/// it: no compiler may fuse the two.
struct DropoutElement {
  float p, scale;

  explicit DropoutElement(float probability) : p(probability), scale(1.0F / (1.0F - probability)) {}
  LOCKSTEP_HOST_DEVICE float operator()(float x, float uniform) const {
#if defined(__CUDA_ARCH__)
    const float kept = __fmul_rn(x, scale);
#else
    const volatile float kept = x * scale;
#endif
    return uniform >= p ? kept : 0.0F;
  }
};

/// Positions [begin, end) of something along one axis.
template <typename Int>
struct Range {
  Int begin, end;
};
using IndexRange = Range<std::int64_t>;

/// Input positions that window `o` of a pooling covers, clipped to the input.
template <typename Int>
LOCKSTEP_HOST_DEVICE Range<Int> covered_inputs(Int o, Int kernel, Int stride, Int padding,
                                               Int input) {
  const Int first = o * stride - padding;
  return {first < 0 ? 0 : first, first + kernel < input ? first + kernel : input};
}

/// A sum in double as two floats, which keep 48 bits of it.
struct SplitSum {
  float nearest, rest;

  LOCKSTEP_HOST_DEVICE explicit SplitSum(double sum)
      : nearest(static_cast<float>(sum)),
        // What is left of an infinite sum is NaN.
        rest(nearest - nearest == 0 ? static_cast<float>(sum - static_cast<double>(nearest)) : 0) {}
};

/// Element `i` of a slot [2, elements] of such sums.
LOCKSTEP_HOST_DEVICE inline double split_sum(const float* slot, std::int64_t i,
                                             std::int64_t elements) {
  return static_cast<double>(slot[i]) + static_cast<double>(slot[elements + i]);
}

/// In place of the probability of a label that is ignored (LabelProbabilities).
inline constexpr float kNoLabel = 2;

/// Bits [shift, shift + log2(kOhemBins)) of what has the bits of a prefix above them, of a float.
struct OhemRound {
  unsigned shift;
  std::uint32_t above;  // mask of the bits that are known
  std::uint32_t bins;   // mask of the bin

  LOCKSTEP_HOST_DEVICE explicit OhemRound(int round)
      : shift(round == 0   ? 21U
              : round == 1 ? 10U
                           : 0U),
        above(round == 0 ? 0U : ~0U << (round == 1 ? 21U : 10U)),
        bins(round == 2 ? 1023U : 2047U) {}

  LOCKSTEP_HOST_DEVICE bool begins_with(std::uint32_t bits, std::uint32_t prefix) const {
    return (bits & above) == prefix;
  }
  LOCKSTEP_HOST_DEVICE std::uint32_t bin_of(std::uint32_t bits) const {
    return (bits >> shift) & bins;
  }
};

/// Where the threshold's place is to be counted from in the first round: `labels` are all that
/// there are.
LOCKSTEP_HOST_DEVICE inline void begin_ohem(double labels, double min_kept, OhemState& state) {
  state.prefix = 0;
  state.any = labels > 0 ? 1 : 0;
  state.before = min_kept < labels - 1 ? min_kept : labels - 1;
}

/// The threshold, when all bits are known.
LOCKSTEP_HOST_DEVICE inline void finish_ohem(float order_statistic, float thresh,
                                             OhemState& state) {
  const bool above = state.any != 0 && order_statistic > thresh;
  state.threshold = above ? order_statistic : thresh;
}

/// The part of a normalizer that the chosen pixels have. weights [2 C].
LOCKSTEP_HOST_DEVICE inline double ohem_normalizer(const double* weights, std::int64_t classes,
                                                   const float* class_weight, double normalizer) {
  double chosen = 0, all = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    const double weight = class_weight == nullptr ? 1.0 : static_cast<double>(class_weight[c]);
    chosen += weights[c] * weight;
    all += weights[classes + c] * weight;
  }
  return (all == 0 ? 0 : chosen / all) * normalizer;
}

/// What a plain cross-entropy's weight of a label becomes with label smoothing.
LOCKSTEP_HOST_DEVICE inline double label_weight(float class_weight, float label_smoothing) {
  return (1.0 - static_cast<double>(label_smoothing)) * static_cast<double>(class_weight);
}

/// Returns the weight of sample `n`. Null: all weigh 1.
LOCKSTEP_HOST_DEVICE inline float weight_of(const float* sample_weights, std::int64_t n) {
  return sample_weights == nullptr ? 1.0F : sample_weights[n];
}

/// What a derivative of 1 adds to the gradient of a mean.
LOCKSTEP_HOST_DEVICE inline float mean_share(double normalizer, float grad_scale) {
  return grad_scale * static_cast<float>(normalizer == 0 ? 0 : 1 / normalizer);
}

/// torch.nn.MSELoss: d^2, which is exact in double.
struct SquaredError {
  LOCKSTEP_HOST_DEVICE LossElement operator()(float output, float target) const {
    const float d = output - target;
    return {static_cast<double>(d) * static_cast<double>(d), 2.0F * d};
  }
};

/// torch.nn.L1Loss: |d|. Its gradient at 0 is 0.
struct AbsoluteError {
  LOCKSTEP_HOST_DEVICE LossElement operator()(float output, float target) const {
    const float d = output - target;
    return {std::fabs(static_cast<double>(d)), d > 0.0F ? 1.0F : d < 0.0F ? -1.0F : 0.0F};
  }
};

/// torch.nn.HuberLoss: d^2 / 2 up to delta, from there delta (|d| - delta / 2).
struct HuberError {
  float delta;

  LOCKSTEP_HOST_DEVICE LossElement operator()(float output, float target) const {
    const float d = output - target;
    const double size = std::fabs(static_cast<double>(d)), bound = static_cast<double>(delta);
    if (size <= bound) return {0.5 * size * size, d};
    return {bound * (size - 0.5 * bound), d > 0.0F ? delta : -delta};
  }
};

/// torch.nn.BCEWithLogitsLoss: (1 - t) x + (1 + (w - 1) t) log(1 + exp(-x)), w the weight of
/// positives; written so that no exponential overflows.
struct BinaryCrossEntropy {
  const float* pos_weight;  // [C]; null: all 1

  LOCKSTEP_HOST_DEVICE LossElement operator()(float x, float target, std::int64_t channel) const {
    const float weight = pos_weight == nullptr ? 1.0F : pos_weight[channel];
    const float positives = 1.0F + (weight - 1.0F) * target;
    const float small = std::exp(-std::fabs(x));
    const float log_sum = std::log1p(small) + (x < 0.0F ? -x : 0.0F);   // log(1 + exp(-x))
    const float negative = (x < 0.0F ? 1.0F : small) / (1.0F + small);  // 1 - sigmoid(x)
    const double loss = (1.0 - static_cast<double>(target)) * static_cast<double>(x) +
                        static_cast<double>(positives) * static_cast<double>(log_sum);
    return {loss, (1.0F - target) - positives * negative};
  }
};

/// The derivative of a Dice loss with respect to a pixel's probability of class c: predicted[c],
/// and overlap[c] more where c is its label.
struct DiceGradient {
  float* overlap;    // [C]
  float* predicted;  // [C]
};

/// The soft Dice loss of sums [3 C] (DiceSums), and its gradient.
LOCKSTEP_HOST_DEVICE inline double dice_loss(const float* sums, std::int64_t classes, float smooth,
                                             const DiceGradient& gradient) {
  const auto share = 1 / static_cast<double>(classes);
  double loss = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    const double above = 2 * static_cast<double>(sums[c]) + static_cast<double>(smooth);
    const double below = static_cast<double>(sums[classes + c]) +
                         static_cast<double>(sums[2 * classes + c]) + static_cast<double>(smooth);
    loss += share * (1 - above / below);
    gradient.overlap[c] = static_cast<float>(-2 * share / below);
    gradient.predicted[c] = static_cast<float>(share * above / (below * below));
  }
  return loss;
}

/// Windows of a pooling that cover input position `i`. `stride`: a number, or what divides as one.
template <typename Int, typename Stride>
LOCKSTEP_HOST_DEVICE Range<Int> covering_windows(Int i, Int kernel, const Stride& stride,
                                                 Int padding, Int output) {
  const Int last = i + padding;
  const Int before = last - kernel;
  const Int end = last / stride + 1;
  return {before < 0 ? 0 : before / stride + 1, end < output ? end : output};
}

/// Input positions that output position `o` of an adaptive pooling averages
/// (torch.nn.AdaptiveAvgPool2d): from floor(o * input / output) to ceil((o+1) * input / output).
/// With the extents exchanged, the output positions whose bins cover an input position.
/// `by_output`: `output`, or what divides as it.
template <typename Int, typename Divides>
LOCKSTEP_HOST_DEVICE Range<Int> adaptive_bin(Int o, Int input, Int output,
                                             const Divides& by_output) {
  return {o * input / by_output, ((o + 1) * input + output - 1) / by_output};
}

/// Whether `candidate`, a later position of a pooling window, replaces `best`: the earliest of
/// equals stays; NaN wins over everything, as in PyTorch.
LOCKSTEP_HOST_DEVICE inline bool wins(float candidate, float best) {
  return candidate > best || candidate != candidate;
}

/// The two inputs that one output position of an interpolation reads along one axis.
struct alignas(16) InterpolationSource {
  std::int32_t low, high;
  float low_weight, high_weight;
};

/// One axis of an interpolation.
struct InterpolationAxis {
  std::int32_t input = 1, output = 1;
  bool align_corners = false;
  float scale = 1;  // input positions from one output position to the next

  InterpolationAxis() = default;
  LOCKSTEP_HOST_DEVICE InterpolationAxis(std::int64_t input_extent, std::int64_t output_extent,
                                         bool align)
      : input(static_cast<std::int32_t>(input_extent)),
        output(static_cast<std::int32_t>(output_extent)),
        align_corners(align) {
    if (!align_corners) {
      scale = static_cast<float>(input) / static_cast<float>(output);
    } else {
      scale = output > 1 ? static_cast<float>(input - 1) / static_cast<float>(output - 1) : 0.0F;
    }
  }
};

/// As area_pixel_compute_source_index of PyTorch, in fp32 like PyTorch; fused by hand, so that all
/// compilers round alike. `low` and `high` grow with the output position.
LOCKSTEP_HOST_DEVICE inline InterpolationSource interpolation_source(const InterpolationAxis& axis,
                                                                     std::int32_t output_position) {
  if (axis.input == axis.output) return {output_position, output_position, 1.0F, 0.0F};
  const auto o = static_cast<float>(output_position);
  float position = 0;
  if (axis.align_corners) {
    position = o * axis.scale;
  } else {
    const float centred = std::fma(axis.scale, o + 0.5F, -0.5F);
    position = centred > 0.0F ? centred : 0.0F;
  }
  const std::int32_t last = axis.input - 1;
  const auto whole = static_cast<std::int32_t>(position);
  const std::int32_t low = whole < last ? whole : last;
  float fraction = position - static_cast<float>(low);
  fraction = fraction < 0.0F ? 0.0F : fraction > 1.0F ? 1.0F : fraction;
  return {low, low < last ? low + 1 : last, 1.0F - fraction, fraction};
}

/// How much an output position takes from input position `i`.
template <typename Int>
LOCKSTEP_HOST_DEVICE float interpolation_weight(const InterpolationSource& source, Int i) {
  return (source.low == i ? source.low_weight : 0.0F) +
         (source.high == i ? source.high_weight : 0.0F);
}

}  // namespace lockstep
