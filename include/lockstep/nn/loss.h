#pragma once
// Losses, as values: what a network's outputs are trained for. Each is a struct:
//   kName            what messages and configurations call it
//   weight           of this loss in the sum of all
//   make_node(site)  what computes it for one replica (nn/loss_node.h)
//   visit_options    its numbers, with key, range and sentence (core/options.h); may be left out
// A loss of one's own has the same. In every one a sample counts as often as its weight says
// (Batch::sample_weights), and all means are over the whole global batch.

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/options.h"
#include "lockstep/nn/loss_node.h"

namespace lockstep {

/// What the labels of each class count in a loss, [classes]; empty: 1 each.
struct ClassWeights : std::vector<float> {
  ClassWeights() = default;
  ClassWeights(std::vector<float> weights) : std::vector<float>(std::move(weights)) {}
  ClassWeights(std::initializer_list<float> weights) : std::vector<float>(weights) {}

  /// They are measured over the training split when a training starts (train/settled_data.h), so
  /// that rare classes count as much as frequent ones. A loss is not made of those that are not.
  bool balanced = false;
};

/// Softmax cross-entropy of logits [N, ..., classes] against a class per position
/// (Batch::labels): the mean over the valid positions of the whole global batch, weighted by the
/// classes' weights (torch.nn.CrossEntropyLoss).
struct CrossEntropyLoss {
  static constexpr const char* kName = "cross_entropy";
  float weight = 1;  // of this loss in the sum of all
  ClassWeights class_weight = {};
  int ignore_index = 255;     // a label that does not count
  float label_smoothing = 0;  // of the target that all classes share

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("class_weight", class_weight, "one per class; balanced: by median frequency, measured first",
      {.in = limits::kNotNegative});
    v("label_smoothing", label_smoothing, "the part of the target that all classes share",
      {.in = limits::kShare, .written = label_smoothing != 0});
  }
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// Softmax cross-entropy whose positions count less the better they are known:
/// -alpha_c (1 - p)^gamma log p, p the probability of the label c (Lin et al. 2017), the mean over
/// the valid positions, however much they count.
struct FocalLoss {
  static constexpr const char* kName = "focal";
  float weight = 1;
  float gamma = 2;
  ClassWeights alpha = {};
  int ignore_index = 255;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("gamma", gamma, "focal: 0 is cross-entropy", {.in = limits::kNotNegative});
    v("alpha", alpha, "focal: one weight per class; balanced: as class_weight",
      {.in = limits::kNotNegative});
  }
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// Cross-entropy of the hard positions alone (online hard example mining, as mmsegmentation's
/// OHEMPixelSampler chooses): those whose label has a probability below `thresh`, and more where
/// these are fewer than `min_kept` for each sample. The choice is over the whole global batch (with
/// micro-batches over each of them), and so is the mean, over the chosen ones.
struct OhemCrossEntropyLoss {
  static constexpr const char* kName = "ohem_cross_entropy";
  float weight = 1;
  float thresh = 0.7F;
  std::int64_t min_kept = 100000;
  ClassWeights class_weight = {};
  int ignore_index = 255;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("thresh", thresh, "ohem_cross_entropy: a pixel is hard below this probability of its label",
      {.in = limits::kShare});
    v("min_kept", min_kept, "ohem_cross_entropy: the fewest pixels, times the images",
      {.in = limits::kNotNegative});
    v("class_weight", class_weight, "one per class; balanced: by median frequency, measured first",
      {.in = limits::kNotNegative});
  }
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// 1 - the mean over all classes of (2 overlap + smooth) / (predicted + labelled + smooth), in
/// which each of the three is a sum over valid positions, of the softmax where it is the label's,
/// of the softmax, and of labels: the soft Dice loss. The sums are over the whole global batch
/// (with micro-batches over each of them), or over each sample, whose losses are then averaged.
struct DiceLoss {
  static constexpr const char* kName = "dice";
  float weight = 1;
  float smooth = 1;
  bool per_image = false;
  int ignore_index = 255;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("smooth", smooth, "dice: added above and below", {.in = limits::kPositive});
    v("per_image", per_image, "dice: a coefficient for each image, not for the global batch");
  }
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// The mean of the squared differences of an output of any shape from the batch's targets for it
/// (Batch::targets), over all elements of the whole global batch (torch.nn.MSELoss).
struct MeanSquaredErrorLoss {
  static constexpr const char* kName = "mean_squared_error";
  float weight = 1;
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// The mean of the absolute differences (torch.nn.L1Loss).
struct L1Loss {
  static constexpr const char* kName = "l1";
  float weight = 1;
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// The mean of d^2 / 2 for differences d up to delta, and delta (|d| - delta / 2) beyond
/// (torch.nn.HuberLoss).
struct HuberLoss {
  static constexpr const char* kName = "huber";
  float weight = 1;
  float delta = 1;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("delta", delta, "where the square ends", {.in = limits::kPositive});
  }
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

/// The mean binary cross-entropy of logits against targets from 0 to 1, each channel by itself
/// (torch.nn.BCEWithLogitsLoss).
struct BCEWithLogitsLoss {
  static constexpr const char* kName = "bce_with_logits";
  float weight = 1;
  std::vector<float> pos_weight = {};  // [channels] of positive targets; empty: all 1

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("pos_weight", pos_weight, "one per channel", {.in = limits::kNotNegative});
  }
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;
};

template <typename Kind>
concept LossKind = requires(const Kind& kind, const LossSite& site) {
  { Kind::kName } -> std::convertible_to<const char*>;
  { kind.weight } -> std::convertible_to<float>;
  { kind.make_node(site) } -> std::same_as<std::unique_ptr<LossNode>>;
};

/// A visitor of options that throws ConfigError for a number that is out of its range.
class LossOptionCheck {
 public:
  explicit LossOptionCheck(const char* loss) : loss_(loss) {}

  template <typename Field>
  void operator()(const char* key, const Field& field, const char*, const Option& option = {}) {
    if constexpr (requires { field.balanced; }) {
      if (field.balanced && field.empty()) fail_unmeasured(key);
    }
    if constexpr (requires { field.begin(); }) {
      for (const auto number : field) check(key, static_cast<double>(number), option.in);
    } else {
      check(key, static_cast<double>(field), option.in);
    }
  }

 private:
  void check(const char* key, double value, const Limits& in) const;
  [[noreturn]] void fail_unmeasured(const char* key) const;

  const char* loss_;
};

/// A loss of one's own whose elements each have a loss by themselves, of the output and the batch's
/// target for it (Batch::targets): the mean over all elements. `Formula`: as
/// FormulaOf takes it (backend/losses.h),
///   LossElement operator()(float output, float target) const;
/// which may also take the channel, std::int64_t. Called on several threads of
/// the host, also where the output lies on a GPU: each step then waits for the GPU, copies output
/// and target to the host and the gradient back, and cannot be recorded.
template <typename Formula>
struct ElementwiseLoss {
  static constexpr const char* kName = "elementwise";
  Formula formula = {};
  float weight = 1;

  std::unique_ptr<LossNode> make_node(const LossSite& site) const {
    return make_element_node(site, weight, std::make_unique<FormulaOf<Formula>>(formula));
  }
};

/// Any of them. A value: copies share what does not change.
class Loss {
 public:
  Loss() : Loss(CrossEntropyLoss{}) {}
  // Implicit: options take a loss as it is.
  template <LossKind Kind>
  Loss(Kind kind)  // NOLINT(google-explicit-constructor)
      : kind_(std::make_shared<const Holder<Kind>>(std::move(kind))) {}

  const char* name() const { return kind_->name(); }
  float weight() const { return kind_->weight(); }
  /// Throws ConfigError when one of its numbers, or the weight, is out of its range.
  void check() const;
  /// For one replica, on its thread. Throws ConfigError where the loss does not fit the output.
  std::unique_ptr<LossNode> make_node(const LossSite& site) const;

 private:
  struct AnyKind {
    virtual ~AnyKind() = default;
    virtual const char* name() const = 0;
    virtual float weight() const = 0;
    virtual void check() const = 0;
    virtual std::unique_ptr<LossNode> make_node(const LossSite& site) const = 0;
  };

  template <typename Kind>
  struct Holder final : AnyKind {
    explicit Holder(Kind value) : kind(std::move(value)) {}

    const char* name() const override { return Kind::kName; }
    float weight() const override { return kind.weight; }
    void check() const override {
      if constexpr (requires(Kind any, LossOptionCheck & visitor) { any.visit_options(visitor); }) {
        LossOptionCheck visitor(Kind::kName);
        Kind copy = kind;
        copy.visit_options(visitor);
      }
    }
    std::unique_ptr<LossNode> make_node(const LossSite& site) const override {
      return kind.make_node(site);
    }

    const Kind kind;
  };

  std::shared_ptr<const AnyKind> kind_;
};

/// Losses that a network may have.
inline constexpr std::size_t kMaxLosses = 8;

/// A loss at an output. An output may have several: their gradients add up in the order in which
/// they are declared.
struct NamedLoss {
  std::string output;
  Loss loss;
};

}  // namespace lockstep
