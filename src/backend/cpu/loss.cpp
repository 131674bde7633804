// Softmax cross-entropy with its gradient, what else is made of a pixel's softmax, and the
// confusion matrix.

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/pixel_lanes.h"
#include "backend/formulas.h"
#include "backend/operands.h"

namespace lockstep {
namespace {

using namespace pixel_lanes;

constexpr std::int64_t kNoBadLabel = std::numeric_limits<std::int64_t>::max();

/// Eight pixels, one in each lane; those that the tensor does not have are ignored.
struct Group {
  Floats values[kMaxClasses + vec::kLanes];  // [class] logits, then exponentials
  Ints labels;                               // kIgnored: no loss, no gradient
  Floats nll;
  Floats sum;     // of the exponentials
  Floats scale;   // of them in the gradient
  Floats others;  // the sum without the label's
  Floats smooth;  // the part of the loss that all classes have
  Floats shares;  // of the label in the gradient
  Floats rows;    // the rows' weights
};

/// One call's arguments and what its pixels share.
struct Task {
  const CrossEntropy& arguments;
  std::int64_t classes;
  double normalizer;
  // [1 + label], and zeros for kIgnored.
  double weights[kMaxClasses + 1] = {};
  float shares[kMaxClasses + 1] = {};  // of the gradient: weight * grad_scale / normalizer
  float smoothing[kMaxClasses + vec::kLanes] = {};  // [class] of its nll in the loss
  float all_smoothing = 0;                          // their sum
  float unit_share = 0;                             // of the gradient: grad_scale / normalizer

  explicit Task(const CrossEntropy& a)
      : arguments(a), classes(a.logits.shape.channels()), normalizer(a.normalizer.get()) {
    const float grad_scale = a.grad_scale.get();
    unit_share = grad_scale * static_cast<float>(share(1));
    const float spread = a.label_smoothing / static_cast<float>(classes);
    for (std::int64_t c = 0; c < classes; ++c) {
      const float weight = a.class_weight == nullptr ? 1.0F : a.class_weight[c];
      weights[1 + c] = label_weight(weight, a.label_smoothing);
      shares[1 + c] = grad_scale * static_cast<float>(share(weights[1 + c]));
      smoothing[c] = spread * weight;
      all_smoothing += smoothing[c];
    }
  }

  /// Nothing but a class weight: each row counts once, and its label alone.
  bool plain() const {
    return arguments.label_smoothing == 0 && arguments.gamma == 0 &&
           arguments.row_weights == nullptr;
  }
  /// Of the global mean.
  double share(double weighted) const { return normalizer == 0 ? 0 : weighted / normalizer; }
  int label(std::int64_t row) const {
    return static_cast<const std::uint16_t*>(
        arguments.labels.data)[row * arguments.labels.row_stride];
  }
};

Floats row_weights(const CrossEntropy& arguments, std::int64_t begin, std::int64_t pixels) {
  Floats weights = vec::broadcast(1);
  if (arguments.row_weights == nullptr) return weights;
  for (std::int64_t p = 0; p < pixels; ++p) {
    weights[p] = arguments.row_weights[(begin + p) / arguments.rows_per_weight];
  }
  return weights;
}

/// The exponentials of logits that the largest has been taken from, and their sums.
template <bool kPlain>
[[gnu::always_inline]] inline void compute_exponentials(const Task& task, Floats largest,
                                                        Group& group) {
  Floats sum{}, others{}, smooth{};
  for (std::int64_t c = 0; c < task.classes; ++c) {
    const Floats value = vec::exp(group.values[c] - largest);
    if constexpr (!kPlain) {
      smooth += task.smoothing[c] * (largest - group.values[c]);
      others += group.labels == static_cast<std::int32_t>(c) ? Floats{} : value;
    }
    group.values[c] = value;
    sum += value;
  }
  group.sum = sum;
  group.others = others;
  group.smooth = smooth;
}

/// What label smoothing, gamma and the rows' weights make of a pixel's loss and gradient, where
/// nll, `share` and the sums are those of a plain one.
void modulate(const Task& task, Floats share, Floats log_sum, Group& group) {
  const Ints ignored = group.labels == kIgnored;
  Floats factor = vec::broadcast(1), slope = factor;
  if (const float gamma = task.arguments.gamma; gamma != 0) {
    const Floats rest = group.others / group.sum;  // 1 - p
    factor = rest == 0.0F ? Floats{} : vec::exp(gamma * vec::log(rest));
    const Floats falls = gamma * (1.0F - rest) * group.nll * (factor / rest);
    slope = rest == 0.0F ? factor : factor + falls;
  }
  const Floats unit = group.rows * task.unit_share;
  group.nll = ignored ? Floats{} : factor * group.nll;
  group.smooth = ignored ? Floats{} : task.all_smoothing * log_sum + group.smooth;
  group.shares = ignored ? Floats{} : group.rows * share * slope;
  group.scale = ignored ? Floats{} : (group.shares + unit * task.all_smoothing) / group.sum;
  group.rows = ignored ? Floats{} : group.rows;
}

/// The negative log-likelihood, and what the gradient needs.
template <bool kPlain>
[[gnu::always_inline]] inline void compute_softmax(const Task& task, Group& group) {
  Floats largest = group.values[0];
  Floats logit = group.values[0];
  for (std::int64_t c = 1; c < task.classes; ++c) {
    const Floats value = group.values[c];
    largest = value > largest ? value : largest;
    logit = group.labels == static_cast<std::int32_t>(c) ? value : logit;
  }
  compute_exponentials<kPlain>(task, largest, group);
  const Ints ignored = group.labels == kIgnored;
  Floats share;
  for (int p = 0; p < vec::kLanes; ++p) share[p] = task.shares[1 + group.labels[p]];
  const Floats log_sum = vec::log(group.sum);
  group.nll = ignored ? Floats{} : log_sum + (largest - logit);
  group.scale = ignored ? Floats{} : share / group.sum;
  if constexpr (!kPlain) modulate(task, share, log_sum, group);
}

/// grad = scale * (exp - [c == label] * sum): softmax minus one-hot, weighted.
[[gnu::always_inline]] inline void store_gradient(const Task& task, std::int64_t begin,
                                                  std::int64_t pixels, const Group& group) {
  store_classes(task.arguments.grad_logits, begin, pixels, [&](std::int64_t first, int k) {
    const Floats softmax = group.values[first + k] * group.scale;
    const Ints own = group.labels - static_cast<std::int32_t>(first) == k;
    return own ? vec::fma(-group.scale, group.sum, softmax) : softmax;
  });
}

/// The same with what every class and the label are less by.
void store_modulated_gradient(const Task& task, std::int64_t begin, std::int64_t pixels,
                              const Group& group) {
  const Floats unit = group.rows * task.unit_share;
  store_classes(task.arguments.grad_logits, begin, pixels, [&](std::int64_t first, int k) {
    const std::int64_t c = first + k;
    const Floats smoothed = group.values[c] * group.scale - unit * task.smoothing[c];
    return group.labels == static_cast<std::int32_t>(c) ? smoothed - group.shares : smoothed;
  });
}

/// Weighted loss of a group's pixels, added to `loss` in their order.
template <bool kPlain>
[[gnu::always_inline]] inline void add_pixels(const Task& task, const Group& group, double& loss) {
  for (int p = 0; p < vec::kLanes; ++p) {
    double pixel = task.weights[1 + group.labels[p]] * static_cast<double>(group.nll[p]);
    if constexpr (!kPlain) {
      pixel = static_cast<double>(group.rows[p]) * (pixel + static_cast<double>(group.smooth[p]));
    }
    loss += pixel;
  }
}

/// Loss of pixels [begin, end), added in their order; writes their gradient when asked for.
template <bool kPlain>
double rows_loss(const Task& task, std::int64_t begin, std::int64_t end) {
  const CrossEntropy& arguments = task.arguments;
  Group group;
  double loss = 0;
  vec::for_each_lanes(end - begin, [&](std::int64_t first, std::int64_t pixels) {
    const std::int64_t row = begin + first;
    group.labels = load_labels(arguments.labels, arguments.ignore_index, row, pixels);
    load_logits(arguments.logits, row, pixels, group.values);
    if constexpr (!kPlain) group.rows = row_weights(arguments, row, pixels);
    compute_softmax<kPlain>(task, group);
    add_pixels<kPlain>(task, group, loss);
    if (!arguments.grad_logits) return;
    if constexpr (kPlain) {
      store_gradient(task, row, pixels, group);
    } else {
      store_modulated_gradient(task, row, pixels, group);
    }
  });
  return loss;
}

/// Of the labels of pixels [begin, end).
void rows_probabilities(const Task& task, std::int64_t begin, std::int64_t end, float* to) {
  const CrossEntropy& arguments = task.arguments;
  Group group;
  vec::for_each_lanes(end - begin, [&](std::int64_t first, std::int64_t pixels) {
    const std::int64_t row = begin + first;
    group.labels = load_labels(arguments.labels, arguments.ignore_index, row, pixels);
    load_logits(arguments.logits, row, pixels, group.values);
    group.rows = vec::broadcast(1);
    compute_softmax<false>(task, group);
    const Floats p = (group.sum - group.others) / group.sum;
    const Floats known = p >= 0.0F ? p : Floats{};  // NaN, too: what is broken is not passed over
    vec::store(to + row, group.labels == kIgnored ? vec::broadcast(2) : known, pixels);
  });
}

/// The first of labels [begin, end) that is neither a class nor ignored, or kNoBadLabel.
std::int64_t find_bad_label(const Task& task, std::int64_t begin, std::int64_t end) {
  const auto is_bad = [classes = static_cast<int>(task.classes),
                       ignored = task.arguments.ignore_index](int label) {
    return static_cast<int>(label >= classes) & static_cast<int>(label != ignored);
  };
  int bad = 0;  // no way out of the loop: it is one of vectors
  for (std::int64_t row = begin; row < end; ++row) bad |= is_bad(task.label(row));
  if (bad == 0) return kNoBadLabel;
  while (is_bad(task.label(begin)) == 0) ++begin;
  return begin;
}

/// Throws for a label that is neither a class nor ignored.
void check_label_values(const Task& task, std::int64_t rows, int threads) {
  std::atomic<std::int64_t> bad = kNoBadLabel;
  parallel_for(rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = find_bad_label(task, begin, end);
    std::int64_t known = bad;
    while (row < known && !bad.compare_exchange_weak(known, row)) {
    }
  });
  const std::int64_t row = bad;
  LOCKSTEP_CHECK(row == kNoBadLabel, "label ", task.label(row == kNoBadLabel ? 0 : row),
                 " of pixel ", row, " is not below the ", task.classes,
                 " classes and is not ignore_index (", task.arguments.ignore_index, ")");
}

/// The arguments of a cross-entropy of which no loss is wanted.
Task checked_task(const CrossEntropy& arguments, int threads) {
  check_computes(arguments.logits.dtype);
  Task task(arguments);
  check_label_values(task, arguments.logits.shape.rows(), threads);
  return task;
}

template <typename T>
int largest_of(const T* logits, std::int64_t classes) {
  int best = 0;
  for (int c = 1; c < classes; ++c) {
    if (logits[c] > logits[best]) best = c;
  }
  return best;
}

}  // namespace

void CpuLosses::cross_entropy(const CrossEntropy& arguments) {
  check_operands(arguments);
  const std::int64_t rows = arguments.logits.shape.rows();
  if (rows == 0) return;
  const Task task = checked_task(arguments, cpu_.threads());
  const auto rows_of = task.plain() ? rows_loss<true> : rows_loss<false>;
  const std::int64_t images = arguments.logits.shape.batch();
  const std::int64_t image_rows = rows / images;
  const std::int64_t tasks = (image_rows + kTaskRows - 1) / kTaskRows;  // of an image
  auto* losses =
      static_cast<double*>(cpu_.scratch(static_cast<std::size_t>(images * tasks) * sizeof(double)));
  parallel_for(images * tasks, std::min(kTaskRows, image_rows) * task.classes, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t image = t / tasks * image_rows;
                   const std::int64_t first = t % tasks * kTaskRows;
                   losses[t] = rows_of(task, image + first,
                                       image + std::min(image_rows, first + kTaskRows));
                 }
               });
  double total = 0;
  for (std::int64_t image = 0; image < images; ++image) {
    const double* parts = losses + image * tasks;
    const double loss = task.share(std::accumulate(parts, parts + tasks, 0.0));
    if (arguments.image_losses != nullptr) arguments.image_losses[image] += loss;
    total += loss;
  }
  *arguments.loss += total;
}

void CpuLosses::label_probabilities(const LabelProbabilities& arguments) {
  check_operands(arguments);
  const std::int64_t rows = arguments.logits.shape.rows();
  if (rows == 0) return;
  CrossEntropy unweighted;
  unweighted.logits = arguments.logits;
  unweighted.labels = arguments.labels;
  unweighted.ignore_index = arguments.ignore_index;
  const Task task = checked_task(unweighted, cpu_.threads());
  const std::int64_t groups = (rows + vec::kLanes - 1) / vec::kLanes;
  parallel_for(groups, vec::kLanes * task.classes, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 const std::int64_t last = std::min(rows, end * vec::kLanes);
                 rows_probabilities(task, begin * vec::kLanes, last, arguments.probabilities);
               });
}

void CpuLosses::confusion_matrix(const Tensor& logits, const Tensor& labels, std::int64_t* matrix) {
  check_confusion_matrix(logits, labels, matrix);
  const std::int64_t rows = logits.shape.rows();
  if (rows == 0) return;
  const std::int64_t classes = logits.shape.channels();
  auto* predictions = static_cast<std::uint16_t*>(
      cpu_.scratch(static_cast<std::size_t>(rows) * sizeof(std::uint16_t)));
  with_element_type(logits.dtype, [&]<typename T>(T) {
    parallel_for(rows, classes, cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* pixel = row_of<const T>(logits, row);
        predictions[row] = static_cast<std::uint16_t>(largest_of(pixel, classes));
      }
    });
  });
  for (std::int64_t row = 0; row < rows; ++row) {
    const int label = labels.labels()[row * labels.row_stride];
    if (label < classes) ++matrix[label * classes + predictions[row]];
  }
}

}  // namespace lockstep
