#pragma once
// What the operations of a Backend take. Tensors are channels-last views (core/tensor.h); pointers
// to floats are device memory of the backend.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "lockstep/core/device.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// A number of an operation that may change while everything else stays, so that a recorded step
/// can be replayed with other numbers: `value`, plus what lies at `memory` (device memory of the
/// backend; null: nothing) when the operation runs.
template <typename T>
struct DeviceScalar {
  // Implicit: operations take plain numbers, too.
  DeviceScalar(T number) : value(number) {}  // NOLINT(google-explicit-constructor)
  DeviceScalar(T number, const T* added) : value(number), memory(added) {}

  /// On the device that owns the memory.
  LOCKSTEP_HOST_DEVICE T get() const { return memory == nullptr ? value : value + *memory; }

  T value;
  const T* memory = nullptr;
};

/// A 2-D convolution. Weights are [out_channels, in_channels / groups, kernel_h, kernel_w], as in
/// PyTorch.
struct ConvGeometry {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t padding_h = 0, padding_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;

  friend bool operator==(const ConvGeometry&, const ConvGeometry&) = default;

  /// Throws Error when an extent is not positive, padding is negative or groups do not divide the
  /// channels.
  void check() const;
  /// Shape of the weights (not channels-last: the order is PyTorch's).
  Shape weight_shape() const;
  /// The product of its extents.
  std::int64_t weight_elements() const {
    return out_channels * (in_channels / groups) * kernel_h * kernel_w;
  }
  /// [N, H', W', out_channels] for an input [N, H, W, in_channels]. Throws Error when the window
  /// does not fit.
  Shape output_shape(const Shape& input) const;
};

/// "3x3 convolution of 16 to 32 channels, stride 1x1, padding 1x1, dilation 1x1, groups 1".
std::string to_string(const ConvGeometry& geometry);

/// The three things that are computed of a convolution, each by an implementation of its own.
enum class ConvPass : std::uint8_t { kForward, kBackwardData, kBackwardWeights };

/// "forward", "backward data" or "backward weights".
const char* to_string(ConvPass pass);

/// A 2-D pooling window without dilation; floor mode, as PyTorch's default.
struct PoolGeometry {
  std::int64_t kernel_h = 2, kernel_w = 2;
  std::int64_t stride_h = 2, stride_w = 2;
  std::int64_t padding_h = 0, padding_w = 0;

  friend bool operator==(const PoolGeometry&, const PoolGeometry&) = default;

  /// Throws Error when an extent is not positive or the padding exceeds half the kernel.
  /// Max-pooling takes at most 255 positions besides: it stores the winner's position in a byte.
  void check() const;
  /// [N, H', W', C]. Throws Error when the window does not fit.
  Shape output_shape(const Shape& input) const;
};

/// Functions of one element, as PyTorch's modules of the same names.
enum class ActivationKind : std::uint8_t {
  kRelu,
  kRelu6,
  kLeakyRelu,
  kSigmoid,
  kHardsigmoid,
  kTanh,
  kSilu,
  kHardswish,
  kGelu,      // by the normal distribution
  kGeluTanh,  // approximate="tanh"
};

const char* to_string(ActivationKind kind);  // "leaky_relu"

/// A function of one element.
struct Activation {
  // Implicit: operations take a plain kind, too.
  Activation(ActivationKind function, float negative_slope = 0.01F)  // NOLINT
      : kind(function), slope(negative_slope) {}

  ActivationKind kind;
  float slope;  // of kLeakyRelu, not negative

  /// Whether the backward pass reads y, and not x.
  bool from_output() const;
};

/// Functions y = f(a, b) of two elements. Where b has one channel, or one row for a whole sample or
/// for all of them, every element of a meets the one that is there.
enum class BinaryKind : std::uint8_t {
  kAdd,
  kSubtract,  // a - b
  kMultiply,
  kPRelu,  // a, times b where a is not positive
};

const char* to_string(BinaryKind kind);  // "prelu"

/// How eps enters the inverse standard deviation.
enum class EpsMode : std::uint8_t {
  kAdd,    // 1 / sqrt(var + eps)
  kClamp,  // 1 / sqrt(max(var, eps))
};

/// Partial statistics of consecutive parts of a batch, all of the same number of rows: for
/// BatchNorm's forward pass [parts, 2, C] = (mean, M2), for its backward pass [parts, 2, C] = (sum
/// dy, sum dy*(x-mu)). `count` is the number of rows behind all of them; may be 0.
struct StatSlot {
  std::int64_t count = 0;
  const float* data = nullptr;  // [parts, 2, C]
  std::int64_t parts = 1;
};

/// Learnable scale and shift; both null when the layer is not affine.
struct AffineParameters {
  const float* weight = nullptr;  // gamma [C]
  const float* bias = nullptr;    // beta [C]
};

/// What a training forward pass keeps for the backward pass of the same call: [3, C] =
/// (mean, invstd, invstd^2 or 0 where `clamp` cut the variance off and so stops its gradient).
struct BatchNormSaved {
  float* data = nullptr;  // [3, C]
};

/// Running statistics to update; null pointers when they are not tracked or this call must not
/// touch them.
struct RunningStatistics {
  float* mean = nullptr;  // [C]
  float* var = nullptr;   // [C]
  double momentum = 0.1;  // weight of the new value (PyTorch's convention)
};

/// The merge, normalise, add and ReLU step of a training forward pass.
struct BatchNormForward {
  Tensor x;         // rows x C
  Tensor residual;  // added before the ReLU; null for none
  Tensor y;         // may not alias x, but see Backend::normalizes_in_convolution
  AffineParameters affine;
  /// (mean, M2), merged in this order by Chan's formula. None: x is normalised by what `saved`
  /// holds of a call before, to the same bits.
  std::span<const StatSlot> slots;
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  bool relu = false;
  BatchNormSaved saved;
  RunningStatistics running;  // takes the unbiased variance of the merged count
};

/// Normalisation by given statistics: evaluation, or a frozen layer.
struct BatchNormInference {
  Tensor x, residual, y;
  AffineParameters affine;
  const float* mean = nullptr;  // [C]
  const float* var = nullptr;   // [C]
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  bool relu = false;
};

/// The local sums of a backward pass.
struct BatchNormBackwardReduce {
  Tensor x, grad_y;
  Tensor y;  // needed for the ReLU mask when a residual was added; else null: the mask is
             // recomputed from x
  AffineParameters affine;
  BatchNormSaved saved;
  bool relu = false;
  float* sums = nullptr;  // [parts, 2, C]: sum dy', sum dy'*(x-mu), dy' = dy masked by the ReLU
  /// [C], += sum dy'*(x-mu)*invstd over the rows, and += sum dy'; the parts' in the tree of
  /// Backend::sums_by_image. Null when not affine.
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  std::int64_t parts = 1;  // equal ones, of consecutive rows; not 1 only with sums_by_image()
};

/// dx (and the residual's gradient) from the merged sums. grad_x may alias grad_y.
struct BatchNormBackwardApply {
  Tensor x, grad_y;
  Tensor y;  // as in BatchNormBackwardReduce
  AffineParameters affine;
  BatchNormSaved saved;
  bool relu = false;
  std::span<const StatSlot> slots;  // (sum dy', sum dy'*(x-mu)), added in this order in double
  Tensor grad_x;
  Tensor grad_residual;  // null when there was none, or its gradient is not needed
  bool accumulate_residual = false;
};

/// Moments of channels on their way to those of groups of channels.
struct GroupMoments {
  float* slot = nullptr;  // [2, C] = (mean, M2)
  std::int64_t rows = 0;  // behind each channel
  std::int64_t channels = 0;
  std::int64_t groups = 1;  // equal runs of channels
};

/// dx (and the residual's gradient) of rows whose channels are normalised in groups, from their
/// sums alone (Wu and He 2018). grad_x may alias grad_y.
struct GroupNormBackwardApply {
  Tensor x, grad_y;
  Tensor y;  // as in BatchNormBackwardReduce
  AffineParameters affine;
  BatchNormSaved saved;  // every channel with its group's values
  bool relu = false;
  const float* sums = nullptr;  // [2, C]: sum dy', sum dy'*(x-mu) of each channel
  std::int64_t groups = 1;      // equal runs of channels
  Tensor grad_x;
  Tensor grad_residual;  // null when there was none, or its gradient is not needed
  bool accumulate_residual = false;
};

/// Batch Renormalization's correction of a batch's statistics (Ioffe 2017, algorithm 1), with
/// sigma = 1 / invstd of EpsMode, and of the running variance for the running sigma:
///   r = clip(sigma_batch / sigma_running, 1 / max_r, max_r),
///   d = clip((mu_batch - mu_running) / sigma_running, -max_d, max_d).
/// y = gamma * (x^ * r + d) + beta is BatchNorm's with another gamma and beta.
struct BatchRenormCorrection {
  std::span<const StatSlot> slots;  // (mean, M2) of the batch, as in BatchNormForward
  std::int64_t channels = 0;
  AffineParameters affine;
  const float* running_mean = nullptr;  // [C], before this batch
  const float* running_var = nullptr;   // [C]
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  double max_r = 1;  // at least 1
  double max_d = 0;
  float* correction = nullptr;  // [2, C] = (r, d)
  float* corrected = nullptr;   // [2, C] = (gamma * r, gamma * d + beta)
};

/// From the gradients of the corrected gamma and beta to those of gamma and beta; r and d are
/// constants.
struct BatchRenormGradient {
  const float* corrected = nullptr;   // [2, C]: of gamma * r, of gamma * d + beta
  const float* correction = nullptr;  // [2, C] = (r, d)
  std::int64_t channels = 0;
  float* grad_weight = nullptr;  // [C] += r * corrected[0] + d * corrected[1]
  float* grad_bias = nullptr;    // [C] += corrected[1]
};

/// Softmax cross-entropy over pixels, fused with its gradient.
struct CrossEntropy {
  Tensor logits;                        // [N,H,W,C]
  Tensor labels;                        // uint16 [N,H,W,1]
  int ignore_index = 255;               // a label value that does not count; -1: none
  const float* class_weight = nullptr;  // [C], null: all 1
  /// The global sum of the class weights of valid pixels. 0, when there are none: the loss is 0
  /// and its gradient, too.
  DeviceScalar<double> normalizer = 1.0;
  Tensor grad_logits;      // null: only the loss
  double* loss = nullptr;  // device memory of one double: += sum of the pixels' / normalizer
  /// Device memory of a double per image: += what it adds to the loss. Null: not wanted; must be
  /// null without sums_by_image().
  double* image_losses = nullptr;
  /// The gradient, and not the loss, is multiplied by it.
  DeviceScalar<float> grad_scale = 1.0F;
  /// torch.nn.CrossEntropyLoss's: a pixel's loss is (1 - s) w_label nll_label + s / C sum w_c
  /// nll_c.
  float label_smoothing = 0;
  /// The label's term is multiplied by (1 - p)^gamma, p its probability (Lin et al. 2017).
  float gamma = 0;
  /// Of every `rows_per_weight` consecutive rows: what their loss is multiplied by. Null: all 1.
  const float* row_weights = nullptr;
  std::int64_t rows_per_weight = 1;
};

/// Mean squared error with its gradient.
struct MeanSquaredError {
  Tensor output;  // [N, ..., C]
  Tensor target;  // fp32, of the output's shape
  /// The global number of elements. 0, when there are none: the loss is 0 and its gradient, too.
  DeviceScalar<double> normalizer = 1.0;
  Tensor grad_output;      // null: only the loss
  double* loss = nullptr;  // device memory of one double: += sum((output-target)^2) / normalizer
  double* image_losses = nullptr;  // as CrossEntropy::image_losses
  /// The gradient, and not the loss, is multiplied by it.
  DeviceScalar<float> grad_scale = 1.0F;
  const float* sample_weights = nullptr;  // [N], times a sample's loss; null: all 1
};

/// What an element of an output costs, and the derivative of that with respect to the output.
struct LossElement {
  double loss;
  float derivative;
};

/// Rows of which every element has a loss by itself, on the host.
struct ElementRows {
  const float* output;
  const float* target;
  float* gradient;                                             // null: only the loss
  std::int64_t output_stride, target_stride, gradient_stride;  // of a row
  std::int64_t rows, channels;
  float share;  // of a derivative in the gradient
};

/// A loss of elements, whatever its formula is. Safe from any thread.
class ElementFormula {
 public:
  virtual ~ElementFormula() = default;
  /// The sum over the rows, element by element; writes their gradient where it is wanted.
  virtual double sum(const ElementRows& rows) const = 0;
};

/// `Formula`: LossElement operator()(float output, float target) const, or with the channel as a
/// third argument, std::int64_t.
template <typename Formula>
class FormulaOf final : public ElementFormula {
 public:
  explicit FormulaOf(const Formula& formula) : formula_(formula) {}

  const Formula& formula() const { return formula_; }

  double sum(const ElementRows& all) const override {
    double sum = 0;
    for (std::int64_t row = 0; row < all.rows; ++row) {
      const float* output = all.output + row * all.output_stride;
      const float* target = all.target + row * all.target_stride;
      float* gradient =
          all.gradient == nullptr ? nullptr : all.gradient + row * all.gradient_stride;
      for (std::int64_t c = 0; c < all.channels; ++c) {
        const LossElement element = of(output[c], target[c], c);
        sum += element.loss;
        if (gradient != nullptr) gradient[c] = element.derivative * all.share;
      }
    }
    return sum;
  }

 private:
  LossElement of(float output, float target, std::int64_t channel) const {
    if constexpr (requires { formula_(output, target, channel); }) {
      return formula_(output, target, channel);
    } else {
      return static_cast<void>(channel), formula_(output, target);
    }
  }

  const Formula formula_;
};

/// The mean of a loss of elements, with its gradient.
struct ElementLosses {
  const ElementFormula* formula = nullptr;
  Tensor output;  // [N, ..., C]
  Tensor target;  // fp32, of the output's shape
  /// The global number of elements. 0, when there are none: the loss is 0 and its gradient, too.
  DeviceScalar<double> normalizer = 1.0;
  const float* sample_weights = nullptr;  // [N], times a sample's loss; null: all 1
  Tensor grad_output;                     // null: only the loss
  double* loss = nullptr;                 // device memory of one double: += sum / normalizer
  double* image_losses = nullptr;         // as CrossEntropy::image_losses
  /// The gradient, and not the loss, is multiplied by it.
  DeviceScalar<float> grad_scale = 1.0F;
};

/// The probability that softmax gives every pixel's label.
struct LabelProbabilities {
  Tensor logits;  // [N, ..., C]
  Tensor labels;  // uint16 [N, ..., 1]
  int ignore_index = 255;
  /// [rows]: 2 where the label is ignored; 0 where it is not a number, as the hardest of all.
  float* probabilities = nullptr;
};

/// Which pixels are hard (OhemCrossEntropyLoss): those whose label has a probability below a
/// threshold, which may be an order statistic of the probabilities of all devices. It is found by
/// their bits, which rise with a probability: rounds of counts, each of the next bits among those
/// that begin alike. Counts are whole numbers, so that it is the same for any placement.
inline constexpr int kOhemRounds = 3;
inline constexpr std::int32_t kOhemBins = 2048;
/// Of a slot of counts: the bins, and the samples.
inline constexpr std::int32_t kOhemCounts = kOhemBins + 1;

/// What the rounds have come to. Lies in device memory; each rank has its own, and all are equal.
struct OhemState {
  double before = 0;         // the threshold's place among those that begin with `prefix`
  double normalizer = 0;     // of the loss over the chosen pixels
  std::uint32_t prefix = 0;  // the bits that are known
  std::int32_t any = 0;      // whether there is a label at all
  float threshold = 0;       // a pixel is chosen whose probability is below it
};

/// A rank's labels that begin with the state's prefix, by their next bits.
struct OhemCount {
  int round = 0;                         // of kOhemRounds
  const float* probabilities = nullptr;  // [rows] of LabelProbabilities
  std::int64_t rows = 0, samples = 0;
  const OhemState* state = nullptr;
  float* slot = nullptr;  // [2, kOhemCounts], as sum_over_batch has sums
};

/// The next bits of the threshold, and after the last round the threshold: `thresh`, or the
/// probability of the first pixel that is not among the hardest min_kept of each sample, whichever
/// is greater.
struct OhemNarrow {
  int round = 0;
  std::span<const StatSlot> counts;  // of all ranks
  std::int64_t min_kept = 0;
  float thresh = 0;
  OhemState* state = nullptr;
};

/// The pixels that are chosen, and what they weigh.
struct OhemChoice {
  Tensor labels;  // uint16 [N, ..., 1]
  std::int64_t classes = 0;
  const float* sample_weights = nullptr;  // [N]; null: all 1
  const OhemState* state = nullptr;
  /// [rows]: probabilities, in whose place come the rows' weights: that of the sample, or 0.
  float* rows = nullptr;
  bool by_image = true;  // a slot for each; else one for all of them
  /// [N or 1, 2, 2 C], as sum_over_batch has sums: what the chosen pixels weigh by class, and all
  /// that have a label.
  float* slots = nullptr;
};

/// The state's normalizer: `normalizer` times the part of the weight that the chosen pixels have.
struct OhemShare {
  std::span<const StatSlot> weights;  // of all ranks
  std::int64_t classes = 0;
  const float* class_weight = nullptr;  // [C]; null: all 1
  DeviceScalar<double> normalizer = 1.0;
  OhemState* state = nullptr;
};

/// What a Dice coefficient is made of: for each class c the sums over an image's valid pixels of
/// p_c where it is the label, of p_c, and of 1 where it is the label. p = softmax(logits).
struct DiceSums {
  Tensor logits;  // [N, ..., C]
  Tensor labels;  // uint16 [N, ..., 1]
  int ignore_index = 255;
  const float* sample_weights = nullptr;  // [N], times a sample's sums; null: all 1
  bool by_image = true;                   // a slot for each; else one for all of them
  /// [N or 1, 2, 3 C + 1]: the three sums of all classes and the samples' weight, as sum_over_batch
  /// has sums: the nearest floats, and what is left of them.
  float* slots = nullptr;
};

/// 1 - mean over classes of (2 overlap + smooth) / (predicted + labelled + smooth), the soft Dice
/// loss (Milletari et al. 2016, without squares), with its gradient.
struct DiceLosses {
  Tensor logits;  // [N, ..., C]
  Tensor labels;  // uint16 [N, ..., 1]
  int ignore_index = 255;
  /// fp32 [1, 3 C + 1], the sums of the whole batch, or [N, 3 C + 1], those of each image.
  Tensor sums;
  float smooth = 1;
  /// The global sum of the samples' weights. A sample adds its weight / normalizer times the loss.
  DeviceScalar<double> normalizer = 1.0;
  const float* sample_weights = nullptr;  // [N]; null: all 1
  Tensor grad_logits;                     // null: only the loss
  double* loss = nullptr;                 // device memory of one double
  double* image_losses = nullptr;         // as CrossEntropy::image_losses
  /// The gradient, and not the loss, is multiplied by it.
  DeviceScalar<float> grad_scale = 1.0F;
};

/// A loss scale that follows the gradients (PyTorch's GradScaler): the gradient of the loss is
/// multiplied by `scale`, which brings small gradients into fp16's range, and the optimizer divides
/// the parameters' gradients by it. Lies in device memory; formulas.h has the rule.
struct LossScaleState {
  float scale = 1;    // a power of two, so that it changes no bit but by over- or underflow
  float inverse = 1;  // 1 / scale
  std::int64_t good_steps = 0;  // in a row with this scale
  std::int64_t skipped = 0;     // steps, because their gradients were not finite

  bool operator==(const LossScaleState&) const = default;
};

/// Whether a rank's gradients can be used.
struct GradientCheck {
  const float* grads = nullptr;
  std::int64_t elements = 0;
  const double* loss = nullptr;  // of the rank
  /// Unchanged when loss and gradients are finite; NaN when the loss is not; infinity when only
  /// gradients are not.
  double* guard = nullptr;
};

/// The weights of a convolution, and for which passes they are wanted.
struct ConvWeights {
  ConvGeometry geometry;
  const float* weight = nullptr;  // [out, in/groups, kh, kw]
  Shape input;                    // of the convolution
  DType dtype = DType::kFloat32;  // of its input
  bool grad_input = false;        // whether conv2d_backward_data is called, too
};

/// A range of flat parameters that are updated alike.
struct ParameterRange {
  std::int64_t begin = 0, end = 0;
  float weight_decay = 0;
  float lr_scale = 1;  // the range's learning rate is that of the shard times this
};

/// How many updates there have been, this one too: steps that were begun, without those that were
/// left out.
struct UpdateCount {
  DeviceScalar<std::int64_t> begun = 1;
  const std::int64_t* skipped = nullptr;  // device memory; null: none

  /// At least 1. On the device that owns the memory.
  LOCKSTEP_HOST_DEVICE std::int64_t get() const {
    const std::int64_t done = begun.get() - (skipped == nullptr ? 0 : *skipped);
    return done < 1 ? 1 : done;
  }
};

/// Elements of the flat parameters whose squares are summed together (OptimizerShard).
constexpr std::int64_t kNormBlock = 512;

/// One owner's share of the optimizer step, over every replica's parameters: g = grad_scale * sum
/// of grads[part][i]; `optimizer` makes the new w and the new state of it; the new w goes to
/// weights[rank][i] of every rank, for all elements i of `ranges`. Nothing is changed, and nothing
/// added, when one of the losses is not finite.
struct OptimizerShard {
  std::span<const float* const> grads;  // [part] of the global batch
  /// In which order the parts are added: once part p is there, the two youngest sums become one,
  /// joins[p] times; one sum is left after the last part. Empty: each part is added to the sum of
  /// those before it. Not empty only with sums_by_image().
  std::span<const int> joins = {};
  std::span<float* const> weights;              // [rank]
  std::array<float*, kMaxSlots> state = {};     // [slot]
  std::span<const ParameterRange> ranges = {};  // in all of the above; ascending, without overlap
  DeviceScalar<float> lr = 0.0F;
  Optimizer optimizer = Sgd{};  // its lr and weight decays do not matter: `lr` and `ranges` do
  UpdateCount updates = {};
  /// One double each, of every rank, however many `grads` there are; empty: not looked at. With a
  /// loss scale they are the ranks' guards (GradientCheck).
  std::span<const double* const> losses = {};
  /// Device memory of one double: += sum of g^2 over the ranges, in double, where g is the sum over
  /// the ranks before the weight decay; null: not wanted. Its bits depend on the ranges and on the
  /// alignment of the memory, never on threads or on the size of the device.
  double* squared_norm = nullptr;
  /// Device memory of a double for each kNormBlock elements, from element 0 on: += the squares of
  /// the block's elements. Null: not wanted; must be null without sums_by_image().
  double* block_squares = nullptr;
  DeviceScalar<float> grad_scale = 1.0F;
  /// What the optimizer then gets of g: clip * g, brought to [-most, most]; NaN stays.
  DeviceScalar<float> clip = 1.0F;
  float most = std::numeric_limits<float>::infinity();
};

/// Sums of squares that a rank has of the gradient: of consecutive blocks of kNormBlock elements,
/// of which the first has this number among all. Device memory.
struct GradientSquares {
  const double* blocks = nullptr;  // [count]; null: not known, left out
  std::int64_t first = 0, count = 0;
};

/// What bounds the gradient's norm: factor = min(1, max_norm / (norm + 1e-6)), where norm is the
/// root of all squares. They are added in an order that depends on the blocks' numbers alone. A
/// norm that is no number makes the factor one, too.
struct ClipFactor {
  std::span<const GradientSquares> squares;  // [rank]
  float max_norm = 0;
  float* factor = nullptr;  // device memory
};

/// An exponential moving average of weights: a += share * (w - a) for each element, or a = w in the
/// first update. Nothing is changed when one of the losses is not finite.
struct WeightAverage {
  const float* weights = nullptr;
  float* average = nullptr;
  std::int64_t elements = 0;
  float share = 1;  // of the new weights
  UpdateCount updates = {};
  std::span<const double* const> losses = {};  // as OptimizerShard::losses
};

/// The next step's loss scale, from what all ranks' gradients have come to. Every rank has a state
/// of its own, and all are equal.
struct LossScaleUpdate {
  std::span<const double* const> guards;  // one double each, of every rank
  LossScaleState* state = nullptr;        // of this rank
  std::int64_t growth_interval = 2000;    // good steps until the scale is doubled
};

}  // namespace lockstep
