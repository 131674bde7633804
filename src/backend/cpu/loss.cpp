// Softmax cross-entropy with its gradient, and the confusion matrix. Pixels are taken in blocks
// whose logits are transposed to [C, pixels]: then every step is a loop over pixels in vectors,
// whatever C is.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/fast_exp.h"
#include "backend/cpu/parallel_for.h"
#include "lockstep/backend/formulas.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBlock = 32;  // pixels of a transposed block
constexpr std::int64_t kTaskRows =
    1024;  // pixels per partial sum of the loss: fixed, not per thread
constexpr std::int64_t kNoBadLabel = std::numeric_limits<std::int64_t>::max();

using Lanes = float[kBlock];

/// One block of pixels; columns that stand for no pixel are zero.
struct Block {
  alignas(
      64) Lanes values[kMaxClasses];  // logits, then exponentials, then gradients; [class][pixel]
  alignas(64) Lanes largest, sum,
      scale;  // per pixel; scale: weight * grad_scale / (normalizer * sum)
};

void load_transposed(const float* source, std::int64_t row_stride, std::int64_t pixels,
                     std::int64_t classes, Block& block) {
  for (std::int64_t p = 0; p < pixels; ++p, source += row_stride) {
    for (std::int64_t c = 0; c < classes; ++c) block.values[c][p] = source[c];
  }
  for (std::int64_t p = pixels; p < kBlock; ++p) {
    for (std::int64_t c = 0; c < classes; ++c) block.values[c][p] = 0;
  }
}

void store_transposed(const Block& block, std::int64_t pixels, std::int64_t classes, float* target,
                      std::int64_t row_stride) {
  for (std::int64_t p = 0; p < pixels; ++p, target += row_stride) {
    for (std::int64_t c = 0; c < classes; ++c) target[c] = block.values[c][p];
  }
}

/// values = exp(value - largest), sum = their sum.
void exponentiate(Block& block, std::int64_t classes) {
  Lanes largest, sum = {};
  std::copy_n(block.values[0], kBlock, largest);
  for (std::int64_t c = 1; c < classes; ++c) {
    const Lanes& values = block.values[c];
    for (std::int64_t p = 0; p < kBlock; ++p) {
      largest[p] = values[p] > largest[p] ? values[p] : largest[p];
    }
  }
  for (std::int64_t c = 0; c < classes; ++c) {
    Lanes& values = block.values[c];
    for (std::int64_t p = 0; p < kBlock; ++p) {
      const float difference = values[p] - largest[p];
      values[p] = difference < kFastExpLowest ? kFastExpLowest : difference;
    }
    for (std::int64_t p = 0; p < kBlock; ++p) values[p] = fast_exp(values[p]);
    for (std::int64_t p = 0; p < kBlock; ++p) sum[p] += values[p];
  }
  std::copy_n(largest, kBlock, block.largest);
  std::copy_n(sum, kBlock, block.sum);
}

/// One call's arguments and what its blocks share.
struct Task {
  const CrossEntropy& arguments;
  const float* logits;
  const std::uint8_t* labels;
  std::int64_t classes;
  double normalizer;
  float grad_scale;

  explicit Task(const CrossEntropy& a)
      : arguments(a),
        logits(a.logits.floats()),
        labels(a.labels.bytes()),
        classes(a.logits.shape.channels()),
        normalizer(a.normalizer.get()),
        grad_scale(a.grad_scale.get()) {}

  /// Of the global mean.
  double share(double weighted) const { return normalizer == 0 ? 0 : weighted / normalizer; }
  int label(std::int64_t row) const { return labels[row * arguments.labels.row_stride]; }
  double weight(int label) const {
    return arguments.class_weight == nullptr ? 1.0
                                             : static_cast<double>(arguments.class_weight[label]);
  }
};

/// Sum of weight * nll over the block; sets `scale`, 0 for ignored pixels.
double block_loss(const Task& task, std::int64_t begin, std::int64_t pixels, Block& block) {
  double loss = 0;
  for (std::int64_t p = 0; p < pixels; ++p) {
    const int label = task.label(begin + p);
    block.scale[p] = 0;
    if (label == task.arguments.ignore_index) continue;
    const double weight = task.weight(label);
    const float logit = task.logits[(begin + p) * task.arguments.logits.row_stride + label];
    const float nll = std::log(block.sum[p]) + (block.largest[p] - logit);
    loss += weight * static_cast<double>(nll);
    block.scale[p] = task.grad_scale * static_cast<float>(task.share(weight)) / block.sum[p];
  }
  return loss;
}

/// grad = scale * (exp - [c == label] * sum): softmax minus one-hot, weighted.
void store_gradient(const Task& task, std::int64_t begin, std::int64_t pixels, Block& block) {
  for (std::int64_t c = 0; c < task.classes; ++c) {
    for (std::int64_t p = 0; p < kBlock; ++p) block.values[c][p] *= block.scale[p];
  }
  const Tensor& gradient = task.arguments.grad_logits;
  float* target = gradient.floats() + begin * gradient.row_stride;
  for (std::int64_t p = 0; p < pixels; ++p) {
    const int label = task.label(begin + p);
    if (label == task.arguments.ignore_index) continue;
    block.values[label][p] -= block.scale[p] * block.sum[p];
  }
  store_transposed(block, pixels, task.classes, target, gradient.row_stride);
}

/// Loss of pixels [begin, end); writes their gradient when asked for.
double rows_loss(const Task& task, std::int64_t begin, std::int64_t end) {
  Block block;
  double loss = 0;
  for (; begin < end; begin += kBlock) {
    const std::int64_t pixels = std::min(kBlock, end - begin);
    const std::int64_t stride = task.arguments.logits.row_stride;
    load_transposed(task.logits + begin * stride, stride, pixels, task.classes, block);
    exponentiate(block, task.classes);
    loss += block_loss(task, begin, pixels, block);
    if (task.arguments.grad_logits) store_gradient(task, begin, pixels, block);
  }
  return loss;
}

/// Throws for a label that is neither a class nor ignored.
void check_label_values(const Task& task, std::int64_t rows, int threads) {
  std::atomic<std::int64_t> bad = kNoBadLabel;
  parallel_for(rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const int label = task.label(row);
      if (label < task.classes || label == task.arguments.ignore_index) continue;
      std::int64_t known = bad;
      while (row < known && !bad.compare_exchange_weak(known, row)) {
      }
      return;
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
  const std::int64_t tasks = (rows + kTaskRows - 1) / kTaskRows;
  auto* losses = static_cast<double*>(scratch(static_cast<std::size_t>(tasks) * sizeof(double)));
  parallel_for(tasks, kTaskRows * task.classes, threads_,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   losses[t] = rows_loss(task, t * kTaskRows, std::min(rows, (t + 1) * kTaskRows));
                 }
               });
  double loss = 0;
  for (std::int64_t t = 0; t < tasks; ++t) loss += losses[t];
  *arguments.loss += task.share(loss);
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
  auto* predictions = static_cast<std::uint8_t*>(scratch(static_cast<std::size_t>(rows)));
  parallel_for(rows, classes, threads_, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* pixel = logits.floats() + row * logits.row_stride;
      predictions[row] = static_cast<std::uint8_t>(largest_of(pixel, classes));
    }
  });
  for (std::int64_t row = 0; row < rows; ++row) {
    const int label = labels.bytes()[row * labels.row_stride];
    if (label < classes) ++matrix[label * classes + predictions[row]];
  }
}

}  // namespace lockstep
