// Softmax cross-entropy with its gradient, and the confusion matrix. Eight pixels are taken at a
// time and their logits transposed, so that a vector holds one class of all of them: every step
// uses whole vectors, whatever C is.

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/exp_log.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/vec.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"

namespace lockstep {
namespace {

using vec::Floats;
using vec::Ints;

constexpr std::int64_t kTaskRows =
    1024;  // of an image, per partial sum of the loss: fixed, not per thread
constexpr std::int64_t kNoBadLabel = std::numeric_limits<std::int64_t>::max();
constexpr int kIgnored = -1;  // in place of an ignored label

/// Calls body(first, lanes) for classes [first, first + lanes). All are kLanes, a constant: the
/// last ones overlap those before them. Only fewer than kLanes classes are taken as they are.
template <typename Body>
[[gnu::always_inline]] inline void for_each_class_lanes(std::int64_t classes, const Body& body) {
  if (classes < vec::kLanes) return body(0, classes);
  std::int64_t c = 0;
  for (; c + vec::kLanes <= classes; c += vec::kLanes) body(c, vec::kLanes);
  if (c < classes) body(classes - vec::kLanes, vec::kLanes);
}

/// Eight pixels, one in each lane; those that the tensor does not have are ignored.
struct Group {
  Floats values[kMaxClasses + vec::kLanes];  // [class] logits, then exponentials
  Ints labels;                               // kIgnored: no loss, no gradient
  Floats nll;
  Floats sum;    // of the exponentials
  Floats scale;  // weight * grad_scale / (normalizer * sum)
};

/// One call's arguments and what its pixels share.
struct Task {
  const CrossEntropy& arguments;
  const float* logits;
  const std::uint16_t* labels;
  std::int64_t classes;
  double normalizer;
  // [1 + label], and zeros for kIgnored.
  double weights[kMaxClasses + 1] = {};
  float shares[kMaxClasses + 1] = {};  // of the gradient: weight * grad_scale / normalizer

  explicit Task(const CrossEntropy& a)
      : arguments(a),
        logits(a.logits.floats()),
        labels(a.labels.labels()),
        classes(a.logits.shape.channels()),
        normalizer(a.normalizer.get()) {
    const float grad_scale = a.grad_scale.get();
    for (std::int64_t c = 0; c < classes; ++c) {
      weights[1 + c] = a.class_weight == nullptr ? 1.0 : static_cast<double>(a.class_weight[c]);
      shares[1 + c] = grad_scale * static_cast<float>(share(weights[1 + c]));
    }
  }

  /// Of the global mean.
  double share(double weighted) const { return normalizer == 0 ? 0 : weighted / normalizer; }
  int label(std::int64_t row) const { return labels[row * arguments.labels.row_stride]; }
};

[[gnu::always_inline]] inline Ints load_labels(const Task& task, std::int64_t begin,
                                               std::int64_t pixels) {
  Ints labels{};
  if (task.arguments.labels.row_stride == 1) {
    labels = vec::load_labels(task.labels + begin, pixels);
  } else {
    for (std::int64_t p = 0; p < pixels; ++p) labels[p] = task.label(begin + p);
  }
  constexpr Ints kLane = {0, 1, 2, 3, 4, 5, 6, 7};
  const Ints ignored =
      (labels == task.arguments.ignore_index) | (kLane >= static_cast<std::int32_t>(pixels));
  return ignored ? Ints{} + kIgnored : labels;
}

/// Lanes beyond `pixels` get the last pixel's logits.
[[gnu::always_inline]] inline void load_logits(const Task& task, std::int64_t begin,
                                               std::int64_t pixels, Group& group) {
  const std::int64_t stride = task.arguments.logits.row_stride;
  const float* source = task.logits + begin * stride;
  for_each_class_lanes(task.classes, [&](std::int64_t first, std::int64_t lanes) {
    Floats rows[vec::kLanes];
    for (std::int64_t p = 0; p < vec::kLanes; ++p) {
      rows[p] = vec::load(source + std::min(p, pixels - 1) * stride + first, lanes);
    }
    winograd::transpose(rows);
    for (int k = 0; k < vec::kLanes; ++k) group.values[first + k] = rows[k];
  });
}

/// The negative log-likelihood, and what the gradient needs.
[[gnu::always_inline]] inline void compute_softmax(const Task& task, Group& group) {
  Floats largest = group.values[0];
  Floats logit = group.values[0];
  for (std::int64_t c = 1; c < task.classes; ++c) {
    const Floats value = group.values[c];
    largest = value > largest ? value : largest;
    logit = group.labels == static_cast<std::int32_t>(c) ? value : logit;
  }
  Floats sum{};
  for (std::int64_t c = 0; c < task.classes; ++c) {
    group.values[c] = vec::exp(group.values[c] - largest);
    sum += group.values[c];
  }
  const Ints ignored = group.labels == kIgnored;
  Floats share;
  for (int p = 0; p < vec::kLanes; ++p) share[p] = task.shares[1 + group.labels[p]];
  group.nll = ignored ? Floats{} : vec::log(sum) + (largest - logit);
  group.scale = ignored ? Floats{} : share / sum;
  group.sum = sum;
}

/// grad = scale * (exp - [c == label] * sum): softmax minus one-hot, weighted.
[[gnu::always_inline]] inline void store_gradient(const Task& task, std::int64_t begin,
                                                  std::int64_t pixels, const Group& group) {
  const Tensor& gradient = task.arguments.grad_logits;
  float* target = gradient.floats() + begin * gradient.row_stride;
  for_each_class_lanes(task.classes, [&](std::int64_t first, std::int64_t lanes) {
    const Ints label = group.labels - static_cast<std::int32_t>(first);
    Floats rows[vec::kLanes];
    for (int k = 0; k < vec::kLanes; ++k) {
      const Floats softmax = group.values[first + k] * group.scale;
      rows[k] = label == k ? vec::fma(-group.scale, group.sum, softmax) : softmax;
    }
    winograd::transpose(rows);
    for (std::int64_t p = 0; p < pixels; ++p) {
      vec::store(target + p * gradient.row_stride + first, rows[p], lanes);
    }
  });
}

/// Loss of pixels [begin, end), added in their order; writes their gradient when asked for.
double rows_loss(const Task& task, std::int64_t begin, std::int64_t end) {
  Group group;
  double loss = 0;
  vec::for_each_lanes(end - begin, [&](std::int64_t first, std::int64_t pixels) {
    group.labels = load_labels(task, begin + first, pixels);
    load_logits(task, begin + first, pixels, group);
    compute_softmax(task, group);
    for (int p = 0; p < vec::kLanes; ++p) {
      loss += task.weights[1 + group.labels[p]] * static_cast<double>(group.nll[p]);
    }
    if (task.arguments.grad_logits) store_gradient(task, begin + first, pixels, group);
  });
  return loss;
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

int largest_of(const float* logits, std::int64_t classes) {
  int best = 0;
  for (int c = 1; c < classes; ++c) {
    if (logits[c] > logits[best]) best = c;
  }
  return best;
}

}  // namespace

void CpuBackend::cross_entropy(const CrossEntropy& arguments) {
  const std::int64_t rows = arguments.logits.shape.rows();
  if (rows == 0) return;
  check_labels(arguments.logits.shape, arguments.labels);
  check_fp32("cross_entropy", {&arguments.logits, &arguments.grad_logits});
  const Task task(arguments);
  check_label_values(task, rows, threads_);
  const std::int64_t images = arguments.logits.shape.batch();
  const std::int64_t image_rows = rows / images;
  const std::int64_t tasks = (image_rows + kTaskRows - 1) / kTaskRows;  // of an image
  auto* losses =
      static_cast<double*>(scratch(static_cast<std::size_t>(images * tasks) * sizeof(double)));
  parallel_for(images * tasks, std::min(kTaskRows, image_rows) * task.classes, threads_,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t image = t / tasks * image_rows;
                   const std::int64_t first = t % tasks * kTaskRows;
                   losses[t] = rows_loss(task, image + first,
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

void CpuBackend::reset_sums(double* sums, int count) {
  std::transform(sums, sums + count, sums, reset_sum);
}

void CpuBackend::confusion_matrix(const Tensor& logits, const Tensor& labels,
                                  std::int64_t* matrix) {
  const std::int64_t rows = logits.shape.rows();
  if (rows == 0) return;
  check_labels(logits.shape, labels);
  check_fp32("confusion_matrix", {&logits});
  const std::int64_t classes = logits.shape.channels();
  auto* predictions =
      static_cast<std::uint16_t*>(scratch(static_cast<std::size_t>(rows) * sizeof(std::uint16_t)));
  parallel_for(rows, classes, threads_, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* pixel = logits.floats() + row * logits.row_stride;
      predictions[row] = static_cast<std::uint16_t>(largest_of(pixel, classes));
    }
  });
  for (std::int64_t row = 0; row < rows; ++row) {
    const int label = labels.labels()[row * labels.row_stride];
    if (label < classes) ++matrix[label * classes + predictions[row]];
  }
}

}  // namespace lockstep
