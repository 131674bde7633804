// Losses against their definitions in double; their gradients against central differences of these.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "backend/device_number.h"
#include "backend/formulas.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

using PixelLabels = std::vector<std::uint16_t>;
using LossOf = std::function<double(const Doubles& output)>;

constexpr int kIgnored = 77;

PixelLabels some_labels(const Shape& output) {
  std::mt19937 generator(7);
  PixelLabels labels(static_cast<std::size_t>(output.rows()));
  for (auto& label : labels) {
    const auto classes = static_cast<std::uint32_t>(output.channels());
    label = static_cast<std::uint16_t>(generator() % 5 == 0 ? kIgnored : generator() % classes);
  }
  return labels;
}

Values positive(const Shape& shape, std::uint32_t seed) {
  Values values = random_values(shape, seed);
  for (float& value : values) value = 0.1F + std::abs(value);
  return values;
}

Doubles gradient_of(const LossOf& loss, Doubles output) {
  constexpr double kStep = 1e-4;
  Doubles gradient;
  for (double& x : output) {
    const double before = x;
    x = before + kStep;
    const double above = loss(output);
    x = before - kStep;
    gradient.push_back((above - loss(output)) / (2 * kStep));
    x = before;
  }
  return gradient;
}

/// A row's probabilities.
Doubles probabilities_of(const Doubles& logits, std::size_t row, std::size_t classes) {
  Doubles p(logits.begin() + static_cast<std::ptrdiff_t>(row * classes),
            logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * classes));
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x);
  for (double& x : p) x /= sum;
  return p;
}

struct LabelsOnDevice {
  Storage storage;
  Tensor tensor;

  LabelsOnDevice(Backend& backend, const Shape& logits, const PixelLabels& labels)
      : storage(backend.allocate(labels.size() * sizeof labels[0])),
        tensor(storage.data(), logits.with_channels(1), DType::kUInt16) {
    backend.upload(tensor, labels.data());
    backend.synchronize();
  }
};

struct ModulatedCase {
  Shape shape;
  float smoothing, gamma;
  std::int64_t rows_per_weight;  // 0: no weights
  Margins margins = {};
};

/// By the definition, each class and each row with its weight.
double modulated_loss(const ModulatedCase& c, const Doubles& logits, const PixelLabels& labels,
                      const Values& classes, const Values& rows) {
  const auto count = static_cast<std::size_t>(c.shape.channels());
  double loss = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] == kIgnored) continue;
    const Doubles p = probabilities_of(logits, row, count);
    const double own = p[labels[row]], s = static_cast<double>(c.smoothing);
    double pixel = -(1 - s) * static_cast<double>(classes[labels[row]]) *
                   std::pow(1 - own, static_cast<double>(c.gamma)) * std::log(own);
    for (std::size_t k = 0; k < count; ++k) {
      pixel -= s / static_cast<double>(count) * static_cast<double>(classes[k]) * std::log(p[k]);
    }
    const auto weighted = static_cast<std::size_t>(c.rows_per_weight);
    loss += pixel * (weighted == 0 ? 1.0 : static_cast<double>(rows[row / weighted]));
  }
  return loss;
}

void check_modulated(const TypedBackend& on, const ModulatedCase& c) {
  const Values logits = on.random(c.shape, 1, 1.5F);
  const PixelLabels labels = some_labels(c.shape);
  const Shape channels{1, c.shape.channels()}, rows{1, c.shape.rows()};
  const Values classes = positive(channels, 2), row_weights = positive(rows, 3);
  const double normalizer = 17;
  const LossOf definition = [&](const Doubles& x) {
    return modulated_loss(c, x, labels, classes, row_weights) / normalizer;
  };
  const Doubles exact(logits.begin(), logits.end());
  const Operand x(on, c.shape, logits, c.margins), gradient(on, c.shape, c.margins);
  const Operand by_class(on.backend, channels, classes), by_row(on.backend, rows, row_weights);
  const LabelsOnDevice on_device(on.backend, c.shape, labels);
  const DeviceNumber<double> loss(on.backend, 0.0);
  CrossEntropy arguments;
  arguments.logits = x.tensor();
  arguments.labels = on_device.tensor;
  arguments.ignore_index = kIgnored;
  arguments.class_weight = by_class.floats();
  arguments.normalizer = normalizer;
  arguments.label_smoothing = c.smoothing;
  arguments.gamma = c.gamma;
  arguments.row_weights = c.rows_per_weight == 0 ? nullptr : by_row.floats();
  arguments.rows_per_weight = std::max<std::int64_t>(1, c.rows_per_weight);
  arguments.grad_logits = gradient.tensor();
  arguments.loss = loss.pointer();
  on->losses().cross_entropy(arguments);
  CHECK(loss.get() == doctest::Approx(definition(exact)).epsilon(2e-6));
  CHECK(relative_error(gradient, gradient_of(definition, exact)) < 1e-5);
  CHECK(gradient.margins_untouched());
}

struct DiceCase {
  Shape shape;
  float smooth;
  bool by_image, weighted;
  Margins margins = {};
};

/// The Dice loss of images [begin, end), each counted as often as it weighs in the sums.
double dice_of(const DiceCase& c, const Doubles& logits, const PixelLabels& labels,
               const Values& weights, std::size_t begin, std::size_t end) {
  const auto classes = static_cast<std::size_t>(c.shape.channels());
  const auto rows = static_cast<std::size_t>(c.shape.rows_per_sample());
  Doubles overlap(classes), total(classes);
  for (std::size_t row = begin * rows; row < end * rows; ++row) {
    if (labels[row] == kIgnored) continue;
    const double weight = c.weighted && !c.by_image ? static_cast<double>(weights[row / rows]) : 1;
    const Doubles p = probabilities_of(logits, row, classes);
    for (std::size_t k = 0; k < classes; ++k) total[k] += weight * p[k];
    total[labels[row]] += weight;
    overlap[labels[row]] += weight * p[labels[row]];
  }
  double loss = 0;
  const auto smooth = static_cast<double>(c.smooth);
  for (std::size_t k = 0; k < classes; ++k) {
    loss += (1 - (2 * overlap[k] + smooth) / (total[k] + smooth)) / static_cast<double>(classes);
  }
  return loss;
}

/// The images' losses, or that of all as often as they weigh.
double dice_loss_of(const DiceCase& c, const Doubles& logits, const PixelLabels& labels,
                    const Values& weights) {
  const auto images = static_cast<std::size_t>(c.shape.batch());
  double loss = 0;
  for (std::size_t n = 0; n < images; ++n) {
    const double weight = c.weighted ? static_cast<double>(weights[n]) : 1;
    loss += weight * (c.by_image ? dice_of(c, logits, labels, weights, n, n + 1)
                                 : dice_of(c, logits, labels, weights, 0, images));
  }
  return loss;
}

/// `result`: what broadcast_sum makes of the slots.
void add_dice_sums(const TypedBackend& on, const DiceCase& c, const DiceSums& sums,
                   const Operand& result) {
  const std::int64_t images = c.shape.batch(), elements = 3 * c.shape.channels() + 1;
  const Operand slots(on.backend, {1, images * 2 * elements});
  DiceSums arguments = sums;
  arguments.by_image = c.by_image || on->sums_by_image();
  arguments.slots = slots.tensor().floats();
  on->losses().dice_sums(arguments);
  for (std::int64_t n = 0; c.by_image && n < images; ++n) {
    const StatSlot own{1, arguments.slots + n * 2 * elements};
    on->sums().broadcast_sum({&own, 1}, result.tensor().sample_range(n, 1), false);
  }
  const StatSlot all{images, arguments.slots, arguments.by_image ? images : 1};
  if (!c.by_image) on->sums().broadcast_sum({&all, 1}, result.tensor(), false);
}

void check_dice(const TypedBackend& on, const DiceCase& c) {
  const Values logits = on.random(c.shape, 1, 1.5F);
  const PixelLabels labels = some_labels(c.shape);
  const Shape samples{1, c.shape.batch()};
  const Values weights = positive(samples, 2);
  const double normalizer = 3.5;
  const LossOf definition = [&](const Doubles& x) {
    return dice_loss_of(c, x, labels, weights) / normalizer;
  };
  const Doubles exact(logits.begin(), logits.end());
  const Operand x(on, c.shape, logits, c.margins), gradient(on, c.shape, c.margins);
  const Operand by_sample(on.backend, samples, weights);
  const LabelsOnDevice on_device(on.backend, c.shape, labels);
  const DeviceNumber<double> loss(on.backend, 0.0);
  DiceSums sums;
  sums.logits = x.tensor();
  sums.labels = on_device.tensor;
  sums.ignore_index = kIgnored;
  sums.sample_weights = c.weighted && !c.by_image ? by_sample.floats() : nullptr;
  const Operand added(on.backend, {c.by_image ? c.shape.batch() : 1, 3 * c.shape.channels() + 1});
  add_dice_sums(on, c, sums, added);
  DiceLosses arguments;
  arguments.logits = x.tensor();
  arguments.labels = on_device.tensor;
  arguments.ignore_index = kIgnored;
  arguments.sums = added.tensor();
  arguments.smooth = c.smooth;
  arguments.normalizer = normalizer;
  arguments.sample_weights = c.weighted ? by_sample.floats() : nullptr;
  arguments.grad_logits = gradient.tensor();
  arguments.loss = loss.pointer();
  on->losses().dice_losses(arguments);
  CHECK(loss.get() == doctest::Approx(definition(exact)).epsilon(2e-6));
  CHECK(relative_error(gradient, gradient_of(definition, exact)) < 1e-5);
  CHECK(gradient.margins_untouched());
}

/// Of one image.
void check_dice_sums(const TypedBackend& on, const Shape& shape) {
  const Values logits = on.random(shape, 1, 1.5F);
  const PixelLabels labels = some_labels(shape);
  const Operand x(on, shape, logits);
  const LabelsOnDevice on_device(on.backend, shape, labels);
  const auto classes = static_cast<std::size_t>(shape.channels());
  DiceSums sums;
  sums.logits = x.tensor();
  sums.labels = on_device.tensor;
  sums.ignore_index = kIgnored;
  const Operand added(on.backend, {1, 3 * shape.channels() + 1});
  add_dice_sums(on, {shape, 1, false, false}, sums, added);
  Doubles expected(3 * classes + 1);
  expected.back() = 1;
  const Doubles exact(logits.begin(), logits.end());
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] == kIgnored) continue;
    const Doubles p = probabilities_of(exact, row, classes);
    expected[labels[row]] += p[labels[row]];
    expected[2 * classes + labels[row]] += 1;
    for (std::size_t c = 0; c < classes; ++c) expected[classes + c] += p[c];
  }
  CHECK(relative_error(added, expected) < 1e-6);
}

template <typename Formula>
void check_elements(
    const TypedBackend& on, const Shape& shape, const Formula& formula,
    const std::function<double(double output, double target, std::size_t channel)>& definition) {
  const Values output = on.random(shape, 1, 1.5F), target = positive(shape, 2);
  const Values weights = positive({1, shape.batch()}, 3);
  const double normalizer = 1.5 * static_cast<double>(shape.elements());
  const auto channels = static_cast<std::size_t>(shape.channels());
  const std::size_t image = output.size() / weights.size();
  double expected = 0;
  Doubles slopes;
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double x = static_cast<double>(output[i]), t = static_cast<double>(target[i]);
    const double share = static_cast<double>(weights[i / image]) / normalizer;
    constexpr double kStep = 1e-6;
    const auto at = [&](double where) { return share * definition(where, t, i % channels); };
    expected += at(x);
    slopes.push_back((at(x + kStep) - at(x - kStep)) / (2 * kStep));
  }
  const Margins margins{1, 2};
  const Operand y(on, shape, output, margins), t(on.backend, shape, target);
  const Operand gradient(on, shape, margins), by_sample(on.backend, {1, shape.batch()}, weights);
  const DeviceNumber<double> loss(on.backend, 0.0);
  const FormulaOf<Formula> any(formula);
  REQUIRE(on->losses().computes(any));
  ElementLosses arguments;
  arguments.formula = &any;
  arguments.output = y.tensor();
  arguments.target = t.tensor();
  arguments.normalizer = normalizer;
  arguments.sample_weights = by_sample.floats();
  arguments.grad_output = gradient.tensor();
  arguments.loss = loss.pointer();
  on->losses().element_losses(arguments);
  CHECK(loss.get() == doctest::Approx(expected).epsilon(1e-6));
  CHECK(relative_error(gradient, slopes) < 1e-6);
  CHECK(gradient.margins_untouched());
}

const std::vector<Shape> kElementShapes{{3, 7, 9, 5}, {2, 4, 6, 16}, {5, 3}, {2, 60, 50, 7}};

}  // namespace

TEST_CASE("cross-entropy with label smoothing, gamma and weights of rows matches the definition") {
  for_each_type([](const TypedBackend& on) {
    for (const ModulatedCase& c : std::vector<ModulatedCase>{
             {{2, 5, 7, 5}, 0.1F, 0, 0},
             {{2, 5, 7, 5}, 0, 2, 0, {1, 2}},
             {{2, 5, 7, 16}, 0, 0.5F, 35},
             {{3, 7, 5}, 0.3F, 1, 1},
             {{4, 12}, 1, 0, 1},
             {{1, 3, 4, 40}, 0.2F, 3, 12},
         }) {
      CAPTURE(to_string(c.shape));
      CAPTURE(c.gamma);
      check_modulated(on, c);
    }
  });
}

TEST_CASE("the sums of dice over many pixels") {
  for_each_type([](const TypedBackend& on) { check_dice_sums(on, {1, 150, 120, 2}); });
}

TEST_CASE("dice and its gradient match the definition") {
  for_each_type([](const TypedBackend& on) {
    for (const DiceCase& c : std::vector<DiceCase>{
             {{3, 5, 7, 5}, 1, false, false},
             {{3, 5, 7, 5}, 0.01F, true, false, {1, 2}},
             {{3, 5, 7, 16}, 1, false, true},
             {{2, 20, 15, 2}, 1, true, true},
             {{1, 3, 4, 11}, 0.5F, false, false},
         }) {
      CAPTURE(to_string(c.shape));
      CAPTURE(c.by_image);
      check_dice(on, c);
    }
  });
}

TEST_CASE("losses of elements match their definitions") {
  for_each_type([](const TypedBackend& on) {
    for (const Shape& shape : kElementShapes) {
      CAPTURE(to_string(shape));
      check_elements(on, shape, SquaredError{},
                     [](double y, double t, std::size_t) { return (y - t) * (y - t); });
      check_elements(on, shape, AbsoluteError{},
                     [](double y, double t, std::size_t) { return std::abs(y - t); });
      check_elements(on, shape, HuberError{0.75F}, [](double y, double t, std::size_t) {
        const double d = std::abs(y - t);
        return d <= 0.75 ? d * d / 2 : 0.75 * (d - 0.375);
      });
      const Values weights = positive({1, shape.channels()}, 4);
      const Operand by_channel(on.backend, {1, shape.channels()}, weights);
      check_elements(on, shape, BinaryCrossEntropy{by_channel.floats()},
                     [&](double y, double t, std::size_t c) {
                       const double p = 1 / (1 + std::exp(-y));
                       return -static_cast<double>(weights[c]) * t * std::log(p) -
                              (1 - t) * std::log(1 - p);
                     });
    }
  });
}

TEST_CASE("losses of elements: large logits overflow nowhere") {
  for (NamedBackend& named : available_backends()) {
    Backend& backend = *named.backend;
    const Operand y(backend, {1, 4}, {1e4F, -1e4F, 1e4F, -1e4F}), t(backend, {1, 4}, {1, 0, 0, 1});
    const Operand gradient(backend, {1, 4});
    const DeviceNumber<double> loss(backend, 0.0);
    const FormulaOf<BinaryCrossEntropy> formula(BinaryCrossEntropy{nullptr});
    backend.losses().element_losses({.formula = &formula,
                                     .output = y.tensor(),
                                     .target = t.tensor(),
                                     .grad_output = gradient.tensor(),
                                     .loss = loss.pointer()});
    CHECK(loss.get() == 2e4);
    CHECK(gradient.get() == Values{0, 0, 1, -1});
  }
}

TEST_CASE("a loss whose normalizer is 0 is 0, and its gradient, too") {
  for (NamedBackend& named : available_backends()) {
    Backend& backend = *named.backend;
    const Shape shape{2, 3, 4};
    const Operand y(backend, shape, random_values(shape, 1)),
        t(backend, shape, random_values(shape, 2));
    const Operand gradient(backend, shape, random_values(shape, 3));
    const DeviceNumber<double> loss(backend, 0.0);
    const FormulaOf<AbsoluteError> formula(AbsoluteError{});
    backend.losses().element_losses({.formula = &formula,
                                     .output = y.tensor(),
                                     .target = t.tensor(),
                                     .normalizer = 0.0,
                                     .grad_output = gradient.tensor(),
                                     .loss = loss.pointer()});
    CHECK(loss.get() == 0);
    CHECK(relative_error(gradient, Doubles(24)) == 0);
  }
}

}  // namespace lockstep::test
