// The Dice loss: sums of an image's softmax, and from the sums of a whole batch, or of the image,
// the loss and its gradient.

#include <algorithm>
#include <vector>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/pixel_lanes.h"
#include "backend/formulas.h"
#include "backend/operands.h"

namespace lockstep {
namespace {

using namespace pixel_lanes;

/// Eight pixels' probabilities [class]; zeros where the label is ignored.
struct Probabilities {
  Floats values[kMaxClasses + vec::kLanes];
  Ints labels;
};

void load_probabilities(const Tensor& logits, const Tensor& labels, int ignore_index,
                        std::int64_t begin, std::int64_t pixels, Probabilities& group) {
  const std::int64_t classes = logits.shape.channels();
  group.labels = load_labels(labels, ignore_index, begin, pixels);
  load_logits(logits, begin, pixels, group.values);
  Floats largest = group.values[0], sum{};
  for (std::int64_t c = 1; c < classes; ++c) {
    largest = group.values[c] > largest ? group.values[c] : largest;
  }
  for (std::int64_t c = 0; c < classes; ++c) {
    group.values[c] = vec::exp(group.values[c] - largest);
    sum += group.values[c];
  }
  const Floats share = group.labels == kIgnored ? Floats{} : 1.0F / sum;
  for (std::int64_t c = 0; c < classes; ++c) group.values[c] *= share;
}

double total(Floats v) {
  return static_cast<double>(((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])));
}

/// sums [3, C] += those of rows [begin, end).
void add_rows(const DiceSums& a, std::int64_t begin, std::int64_t end, double* sums) {
  const std::int64_t classes = a.logits.shape.channels();
  double *overlap = sums, *predicted = sums + classes, *labelled = sums + 2 * classes;
  Probabilities group;
  vec::for_each_lanes(end - begin, [&](std::int64_t first, std::int64_t pixels) {
    load_probabilities(a.logits, a.labels, a.ignore_index, begin + first, pixels, group);
    for (std::int64_t c = 0; c < classes; ++c) predicted[c] += total(group.values[c]);
    for (int p = 0; p < vec::kLanes; ++p) {
      const std::int64_t label = group.labels[p];
      if (label == kIgnored || label >= classes) continue;
      overlap[label] += static_cast<double>(group.values[label][p]);
      labelled[label] += 1;
    }
  });
}

/// Element i of an image's sums [tasks, elements - 1], added in their order, or what it counts.
double image_sum(const double* sums, std::int64_t tasks, std::int64_t elements, std::int64_t i) {
  if (i + 1 == elements) return 1;
  double sum = 0;
  for (std::int64_t t = 0; t < tasks; ++t) sum += sums[t * (elements - 1) + i];
  return sum;
}

/// slot [2, elements] of images [first, last), whose sums are [image, tasks, elements - 1].
void write_slot(const DiceSums& a, const double* sums, std::int64_t tasks, std::int64_t first,
                std::int64_t last, float* slot) {
  const std::int64_t elements = 3 * a.logits.shape.channels() + 1;
  for (std::int64_t i = 0; i < elements; ++i) {
    double sum = 0;
    for (std::int64_t n = first; n < last; ++n) {
      const auto weight = static_cast<double>(weight_of(a.sample_weights, n));
      sum += weight * image_sum(sums + n * tasks * (elements - 1), tasks, elements, i);
    }
    const SplitSum split(sum);
    slot[i] = split.nearest;
    slot[elements + i] = split.rest;
  }
}

void write_gradient(const DiceLosses& a, const DiceGradient& set, float share, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t classes = a.logits.shape.channels();
  Probabilities group;
  vec::for_each_lanes(end - begin, [&](std::int64_t first, std::int64_t pixels) {
    const std::int64_t row = begin + first;
    load_probabilities(a.logits, a.labels, a.ignore_index, row, pixels, group);
    Floats mean{};
    for (std::int64_t c = 0; c < classes; ++c) {
      mean += group.values[c] * set.predicted[static_cast<std::size_t>(c)];
    }
    for (int p = 0; p < vec::kLanes; ++p) {
      const auto label = static_cast<std::int64_t>(group.labels[p]);
      if (label == kIgnored || label >= classes) continue;
      mean[p] += group.values[label][p] * set.overlap[static_cast<std::size_t>(label)];
    }
    store_classes(a.grad_logits, row, pixels, [&](std::int64_t first_class, int k) {
      const std::int64_t c = first_class + k;
      if (c >= classes) return Floats{};
      const auto i = static_cast<std::size_t>(c);
      const Floats of_class = vec::broadcast(set.predicted[i]);
      const Floats slope =
          group.labels == static_cast<std::int32_t>(c) ? of_class + set.overlap[i] : of_class;
      return share * group.values[c] * (slope - mean);
    });
  });
}

}  // namespace

void CpuLosses::dice_sums(const DiceSums& arguments) {
  check_operands(arguments);
  const Shape& shape = arguments.logits.shape;
  if (shape.rows() == 0) return;
  check_computes(arguments.logits.dtype);
  const std::int64_t classes = shape.channels(), image = shape.rows_per_sample();
  const std::int64_t per_image = (image + kTaskRows - 1) / kTaskRows;
  const std::int64_t tasks = shape.batch() * per_image;
  auto* sums = static_cast<double*>(
      cpu_.scratch(static_cast<std::size_t>(tasks * 3 * classes) * sizeof(double)));
  std::fill(sums, sums + tasks * 3 * classes, 0.0);
  parallel_for(tasks, std::min(kTaskRows, image) * classes, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t first = t / per_image * image;
                   const std::int64_t row = t % per_image * kTaskRows;
                   add_rows(arguments, first + row, first + std::min(image, row + kTaskRows),
                            sums + t * 3 * classes);
                 }
               });
  const std::int64_t images = shape.batch();
  if (!arguments.by_image) {
    return write_slot(arguments, sums, per_image, 0, images, arguments.slots);
  }
  for (std::int64_t n = 0; n < images; ++n) {
    float* const slot = arguments.slots + n * 2 * (3 * classes + 1);
    write_slot(arguments, sums, per_image, n, n + 1, slot);
  }
}

void CpuLosses::dice_losses(const DiceLosses& arguments) {
  check_operands(arguments);
  const Shape& shape = arguments.logits.shape;
  if (shape.rows() == 0) return;
  check_computes(arguments.logits.dtype);
  const std::int64_t classes = shape.channels(), image = shape.rows_per_sample();
  const double normalizer = arguments.normalizer.get();
  const bool whole = arguments.sums.shape.batch() == 1;
  auto* slopes =
      static_cast<float*>(cpu_.scratch(static_cast<std::size_t>(2 * classes) * sizeof(float)));
  const DiceGradient set{slopes, slopes + classes};
  for (std::int64_t n = 0; n < shape.batch(); ++n) {
    const float* sums = arguments.sums.floats() + (whole ? 0 : n * (3 * classes + 1));
    const double loss = dice_loss(sums, classes, arguments.smooth, set);
    const auto weight = static_cast<double>(weight_of(arguments.sample_weights, n));
    const double share = normalizer == 0 ? 0 : weight / normalizer;
    const double added = share * loss;
    if (arguments.image_losses != nullptr) arguments.image_losses[n] += added;
    *arguments.loss += added;
    if (!arguments.grad_logits) continue;
    const float slope = arguments.grad_scale.get() *
                        static_cast<float>(share * static_cast<double>(sums[3 * classes]));
    const std::int64_t groups = (image + vec::kLanes - 1) / vec::kLanes;
    parallel_for(groups, vec::kLanes * classes, cpu_.threads(),
                 [&](std::int64_t begin, std::int64_t end) {
                   write_gradient(arguments, set, slope, n * image + begin * vec::kLanes,
                                  n * image + std::min(image, end * vec::kLanes));
                 });
  }
}

}  // namespace lockstep
