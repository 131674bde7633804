#pragma once
// Losses with their gradients, and the confusion matrix.

#include <cstdint>
#include <span>

#include "lockstep/backend/sums.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

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
  /// null without Backend::sums_by_image().
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
/// How many counts a slot has: of the bins, and of the samples.
inline constexpr std::int32_t kOhemCounts = kOhemBins + 1;

/// What the rounds have found. It lies in device memory; each rank has its own, and all are equal.
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

/// Finds the next bits of the threshold, and after the last round the threshold: `thresh`, or the
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
  /// [rows]: probabilities, which the rows' weights replace: that of the sample, or 0.
  float* rows = nullptr;
  bool by_image = true;  // a slot for each; else one for all of them
  /// [N or 1, 2, 2 C], as sum_over_batch has sums: what the chosen pixels weigh by class, and all
  /// that have a label.
  float* slots = nullptr;
};

/// The state's normalizer: `normalizer` times the share of the weight that the chosen pixels have.
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

/// The losses and metrics of a replica's device. Backend says what all operations have in common.
class LossOperations {
 public:
  virtual ~LossOperations() = default;

  /// Adds to the loss, and writes its gradient where it is wanted, as element_losses().
  virtual void cross_entropy(const CrossEntropy& arguments) = 0;
  /// Whether `element_losses` computes this formula here.
  virtual bool computes(const ElementFormula& formula) const = 0;
  virtual void element_losses(const ElementLosses& arguments) = 0;
  virtual void label_probabilities(const LabelProbabilities& arguments) = 0;
  // One after another, each of the first two in every round; ranks show each other the slots.
  virtual void ohem_count(const OhemCount& count) = 0;
  virtual void ohem_narrow(const OhemNarrow& narrow) = 0;
  virtual void ohem_choose(const OhemChoice& choice) = 0;
  virtual void ohem_share(const OhemShare& share) = 0;
  virtual void dice_sums(const DiceSums& arguments) = 0;
  virtual void dice_losses(const DiceLosses& arguments) = 0;
  /// matrix [classes, classes] (row: label, column: the largest logit, first of equals) += counts
  /// of pixels whose label is below `classes`. Device memory.
  virtual void confusion_matrix(const Tensor& logits, const Tensor& labels,
                                std::int64_t* matrix) = 0;
};

}  // namespace lockstep
