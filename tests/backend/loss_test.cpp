// Cross-entropy against its definition in double, and the confusion matrix against counting.

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/exp_log.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

using Labels = std::vector<std::uint16_t>;

Labels random_labels(std::int64_t count, std::int64_t classes, int ignore_index,
                     std::uint32_t seed) {
  std::mt19937 generator(seed);
  Labels labels(static_cast<std::size_t>(count));
  for (auto& label : labels) {
    const bool ignored = ignore_index >= 0 && generator() % 4 == 0;
    label = static_cast<std::uint16_t>(ignored ? static_cast<std::uint32_t>(ignore_index)
                                               : generator() % static_cast<std::uint32_t>(classes));
  }
  return labels;
}

struct DeviceLabels {
  Storage storage;
  Tensor tensor;
  DeviceLabels(Backend& backend, const Shape& logits, const Labels& labels)
      : storage(backend.allocate(labels.size() * sizeof labels[0])),
        tensor(storage.data(), logits.with_channels(1), DType::kUInt16) {
    backend.upload(tensor, labels.data());
    backend.synchronize();
  }
};

/// A double in device memory.
struct DeviceDouble {
  Storage storage;
  Tensor tensor;  // as bytes
  explicit DeviceDouble(Backend& backend)
      : storage(backend.allocate(sizeof(double))),
        tensor(storage.data(), {1, sizeof(double)}, DType::kUInt8) {}
  double* pointer() const { return static_cast<double*>(storage.data()); }
  double get(Backend& backend) const {
    double value = 0;
    backend.download(&value, tensor);
    backend.synchronize();
    return value;
  }
};

struct Reference {
  double loss = 0;
  Doubles gradient;
};

Reference reference_loss(const Values& logits, const Labels& labels, const Values& weights,
                         int ignore_index, double normalizer) {
  const std::size_t classes = logits.size() / labels.size();
  Reference r{0, Doubles(logits.size())};
  for (std::size_t p = 0; p < labels.size(); ++p) {
    if (labels[p] == ignore_index) continue;
    const float* pixel = &logits[p * classes];
    const double largest = static_cast<double>(*std::max_element(pixel, pixel + classes));
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c)
      sum += std::exp(static_cast<double>(pixel[c]) - largest);
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[labels[p]]);
    r.loss +=
        weight * (std::log(sum) + largest - static_cast<double>(pixel[labels[p]])) / normalizer;
    for (std::size_t c = 0; c < classes; ++c) {
      const double softmax = std::exp(static_cast<double>(pixel[c]) - largest) / sum;
      r.gradient[p * classes + c] = weight * (softmax - (c == labels[p] ? 1 : 0)) / normalizer;
    }
  }
  return r;
}

struct LossCase {
  Shape logits;
  float scale;  // of the logits
  bool weighted;
  int ignore_index;
  Margins margins;
};

void check_loss(const TypedBackend& on, const LossCase& c) {
  const Values logits = on.random(c.logits, 1, c.scale);
  const Labels labels = random_labels(c.logits.rows(), c.logits.channels(), c.ignore_index, 2);
  Values weights;
  if (c.weighted) {
    weights = random_values({1, c.logits.channels()}, 3);
    for (float& weight : weights) weight = std::abs(weight);
  }
  const double normalizer = 0.5 * static_cast<double>(c.logits.rows()) + 3;
  const Reference expected = reference_loss(logits, labels, weights, c.ignore_index, normalizer);
  const Operand x(on, c.logits, logits, c.margins), gradient(on, c.logits, c.margins);
  const Operand class_weight(on.backend, {1, c.logits.channels()}, weights);
  const DeviceLabels device_labels(on.backend, c.logits, labels);
  const DeviceDouble loss(on.backend);
  on->losses().cross_entropy({x.tensor(), device_labels.tensor, c.ignore_index,
                              c.weighted ? class_weight.floats() : nullptr, normalizer,
                              gradient.tensor(), loss.pointer()});
  CHECK(loss.get(on.backend) == doctest::Approx(expected.loss).epsilon(1e-6));
  CHECK(relative_error(gradient, expected.gradient) < 2e-6);
  CHECK(gradient.margins_untouched());
  // Without a gradient the loss is the same, and it is added to what is there.
  on->losses().cross_entropy({x.tensor(),
                              device_labels.tensor,
                              c.ignore_index,
                              c.weighted ? class_weight.floats() : nullptr,
                              normalizer,
                              {},
                              loss.pointer()});
  CHECK(loss.get(on.backend) == doctest::Approx(2 * expected.loss).epsilon(1e-6));
}

TEST_CASE("cross-entropy and its gradient match the definition") {
  for_each_type([](const TypedBackend& on) {
    for (const LossCase& c : std::vector<LossCase>{
             {{2, 7, 9, 11}, 2.0F, false, 255, {}},
             {{2, 7, 9, 11}, 2.0F, true, 255, {}},
             {{1, 5, 33, 19}, 8.0F, true, 0, {4, 1}},
             {{3, 40, 50, 16}, 1.0F, false, 3, {}},
             {{1, 3, 5, 1}, 1.0F, false, -1, {}},
             {{1, 3, 5, 2}, 30.0F, true, -1, {0, 5}},
             {{1, 4, 9, 256}, 3.0F, false, -1, {}},
             {{9, 1000}, 3.0F, true, 65535, {}},
             {{1, 1, 3, 4096}, 3.0F, false, 300, {}},
             {{1, 9, 31, 16}, 2.0F, true, 3, {8, 8}},
             {{1, 9, 31, 16}, 2.0F, true, 3, {3, 5}},
             {{1, 9, 31, 16}, 2.0F, true, 3, {8, 1}},
         }) {
      CAPTURE(to_string(c.logits));
      CAPTURE(c.weighted);
      check_loss(on, c);
    }
  });
}

TEST_CASE("logits of ten thousand neither overflow nor lose the loss") {
  const auto backend = cpu(1);
  const Shape shape{1, 1, 3, 2};
  const Operand logits(*backend, shape, {1e4F, -1e4F, 1e4F, -1e4F, -1e4F, -1e4F});
  const Operand gradient(*backend, shape);
  const DeviceLabels labels(*backend, shape, {0, 1, 0});
  const DeviceDouble loss(*backend);
  backend->losses().cross_entropy(
      {logits.tensor(), labels.tensor, 255, nullptr, 1, gradient.tensor(), loss.pointer()});
  CHECK(loss.get(*backend) == doctest::Approx(2e4 + std::log(2.0)));
  CHECK(gradient.get() == Values{0, 0, 1, -1, -0.5F, 0.5F});
}

TEST_CASE("a logit that is not finite makes the loss not finite") {
  const auto backend = cpu(1);
  const Shape shape{1, 1, 2, 3};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {0, 1, 2}) {
      Values values{1, 2, 3, 4, 5, 6};
      values[at] = bad;
      const Operand logits(*backend, shape, values);
      const DeviceLabels labels(*backend, shape, {1, 1});
      const DeviceDouble loss(*backend);
      backend->losses().cross_entropy(
          {logits.tensor(), labels.tensor, 255, nullptr, 1, {}, loss.pointer()});
      CHECK_FALSE(std::isfinite(loss.get(*backend)));
    }
  }
}

TEST_CASE("a batch of ignored pixels has no loss and zero gradients") {
  const auto backend = cpu(2);
  const Shape shape{2, 30, 40, 11};
  const Operand logits(*backend, shape, random_values(shape, 1)), gradient(*backend, shape);
  const DeviceLabels labels(*backend, shape, Labels(static_cast<std::size_t>(shape.rows()), 255));
  const DeviceDouble loss(*backend);
  backend->losses().cross_entropy(
      {logits.tensor(), labels.tensor, 255, nullptr, 1, gradient.tensor(), loss.pointer()});
  CHECK(loss.get(*backend) == 0.0);
  CHECK(gradient.get() == Values(static_cast<std::size_t>(shape.elements()), 0.0F));
}

TEST_CASE("the loss does not depend on the number of threads") {
  const Shape shape{3, 61, 53, 11};
  std::vector<double> losses;
  std::vector<Values> gradients;
  for (const int threads : {1, 2, 5}) {
    const auto backend = cpu(threads);
    const Operand logits(*backend, shape, random_values(shape, 1)), gradient(*backend, shape);
    const DeviceLabels labels(*backend, shape, random_labels(shape.rows(), 11, 255, 2));
    const DeviceDouble loss(*backend);
    backend->losses().cross_entropy(
        {logits.tensor(), labels.tensor, 255, nullptr, 7, gradient.tensor(), loss.pointer()});
    losses.push_back(loss.get(*backend));
    gradients.push_back(gradient.get());
  }
  CHECK(losses == std::vector<double>(3, losses[0]));
  CHECK(gradients == std::vector<Values>(3, gradients[0]));
}

TEST_CASE("a label that is no class is an error that names the pixel") {
  const auto backend = cpu(1);
  const Shape shape{1, 1, 3, 4};
  const Operand logits(*backend, shape, random_values(shape, 1));
  const DeviceLabels labels(*backend, shape, {1, 7, 255});
  const DeviceDouble loss(*backend);
  CHECK_THROWS_WITH_AS(backend->losses().cross_entropy(
                           {logits.tensor(), labels.tensor, 255, nullptr, 1, {}, loss.pointer()}),
                       doctest::Contains("label 7 of pixel 1"), Error);
}

void check_confusion_matrix(const TypedBackend& on, std::int64_t classes, Margins margins) {
  const Shape shape{2, 37, 41, classes};
  Values values = random_values(shape, 1);
  for (float& value : values) value = std::round(value);                   // ties: the first wins
  const Labels labels = random_labels(shape.rows(), classes + 2, 255, 2);  // also no class
  const auto count = static_cast<std::size_t>(classes);
  const std::size_t entries = count * count + 5;  // five behind the matrix must stay as they are
  std::vector<std::int64_t> expected(entries, 100), matrix = expected;
  for (std::size_t p = 0; p < labels.size(); ++p) {
    const float* pixel = &values[p * count];
    if (labels[p] >= count) continue;
    const auto best = std::max_element(pixel, pixel + classes) - pixel;
    ++expected[labels[p] * count + static_cast<std::size_t>(best)];
  }
  const Operand logits(on, shape, values, margins);
  const DeviceLabels device_labels(on.backend, shape, labels);
  const std::size_t bytes = entries * sizeof(std::int64_t);
  const Storage storage = on->allocate(bytes);
  const Tensor counters(storage.data(), {1, static_cast<std::int64_t>(bytes)}, DType::kUInt8);
  on->upload(counters, matrix.data());
  on->losses().confusion_matrix(logits.tensor(), device_labels.tensor,
                                static_cast<std::int64_t*>(storage.data()));
  on->download(matrix.data(), counters);
  on->synchronize();
  CHECK(matrix == expected);
}

TEST_CASE("the confusion matrix counts labels against the largest logits") {
  for_each_type([](const TypedBackend& on) {
    for (const std::int64_t classes : {5, 16, 40, 300}) {
      for (const Margins& margins : {Margins{}, Margins{2, 3}, Margins{8, 8}}) {
        CAPTURE(classes);
        CAPTURE(margins.before);
        check_confusion_matrix(on, classes, margins);
      }
    }
  });
}

TEST_CASE("an empty batch reads and writes nothing") {
  const auto backend = cpu(2);
  const Tensor logits(nullptr, {0, 4, 4, 3}), labels(nullptr, {0, 4, 4, 1}, DType::kUInt16);
  backend->losses().cross_entropy({logits, labels, 255, nullptr, 1, logits, nullptr});
  backend->losses().confusion_matrix(logits, labels, nullptr);
}

/// The largest error of `approximate` in units in the last place of `exact`, over all of
/// `arguments`.
template <typename Approximate, typename Exact>
double largest_error(const Values& arguments, const Approximate& approximate, const Exact& exact) {
  double largest = 0;
  for (std::size_t i = 0; i + vec::kLanes <= arguments.size(); i += vec::kLanes) {
    const vec::Floats results = approximate(vec::load(&arguments[i]));
    for (std::size_t lane = 0; lane < vec::kLanes; ++lane) {
      const double expected = exact(static_cast<double>(arguments[i + lane]));
      const auto rounded = static_cast<float>(expected);
      const double unit = static_cast<double>(std::nextafter(rounded, INFINITY)) - rounded;
      largest = std::max(largest, std::abs(results[lane] - expected) / unit);
    }
  }
  return largest;
}

TEST_CASE("the exponential of vectors is within two units in the last place") {
  Values arguments;
  for (int i = 0; i < 873000; ++i) arguments.push_back(-1e-4F * static_cast<float>(i));
  CHECK(largest_error(
            arguments, [](vec::Floats x) { return vec::exp(x); },
            [](double x) { return std::exp(x); }) <= 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const vec::Floats special =
      vec::exp(vec::Floats{0.0F, -0.0F, vec::kExpLowest, -1e4F, -infinity, nan, -87.7F, -200.0F});
  for (const int lane : {0, 1}) CHECK(special[lane] == 1.0F);
  for (const int lane : {2, 3, 4, 6, 7}) CHECK(special[lane] == 0.0F);
  CHECK(std::isnan(special[5]));
}

TEST_CASE("the logarithm of vectors is within one unit in the last place") {
  // What a sum of exponentials can be: 1 to the number of classes; all floats just above 1, where
  // the logarithm is smallest, and every 61st up to 256.
  Values arguments;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    arguments.push_back(std::bit_cast<float>(0x3F800000U + bits));
  }
  for (std::uint32_t bits = 0x3F800000U; bits <= 0x43800000U; bits += 61) {
    arguments.push_back(std::bit_cast<float>(bits));
  }
  CHECK(largest_error(
            arguments, [](vec::Floats x) { return vec::log(x); },
            [](double x) { return std::log(x); }) <= 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const vec::Floats special =
      vec::log(vec::Floats{1.0F, nan, 2.0F, 256.0F, 1.0F, 1.0F, 1.0F, 1.0F});
  CHECK(special[0] == 0.0F);
  CHECK(std::isnan(special[1]));
  CHECK(special[2] == std::log(2.0F));
  CHECK(special[3] == std::log(256.0F));
}

}  // namespace
}  // namespace lockstep::test
