// Every operation's bits with 1, 2, 5 and 16 host threads: what is summed, normalised or chosen
// depends on shapes only. Tensors are large enough that all threads get a part; their rows do not
// divide evenly among them.

#include <sched.h>

#include <cstring>
#include <functional>
#include <thread>

#include "backend/formulas.h"
#include "backend/operand.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kChannels = 16;
const Shape kShape{3, 66, 94, kChannels};  // 297 thousand elements, 18612 rows
const Shape kHalf{3, 33, 47, kChannels};
const Shape kChannelRow{1, kChannels};

/// All bytes that an operation wrote.
using Bits = std::vector<char>;

/// A backend of some threads with operands that do not depend on how many.
struct ThreadBench {
  explicit ThreadBench(int threads) : backend(make_backend(Device{}, threads)) {}

  Operand drawn(const Shape& shape, std::uint32_t seed, Margins margins = {}) const {
    return Operand(*backend, shape, random_values(shape, seed), margins);
  }
  Operand blank(const Shape& shape, Margins margins = {}) const {
    return Operand(*backend, shape, margins);
  }
  Tensor bytes(const Storage& storage, const Shape& shape) const {
    return Tensor(storage.data(), shape, DType::kUInt8);
  }
  Tensor labels(const Storage& storage, const Shape& shape) const {
    return Tensor(storage.data(), shape, DType::kUInt16);
  }

  std::unique_ptr<Backend> backend;
};

void append_bytes(Bits& bits, const void* data, std::size_t count) {
  const auto* first = static_cast<const char*>(data);
  bits.insert(bits.end(), first, first + count);
}

Bits bits_of(std::initializer_list<const Operand*> results) {
  Bits bits;
  for (const Operand* result : results) {
    const Values values = result->get();
    append_bytes(bits, values.data(), values.size() * sizeof(float));
  }
  return bits;
}

Bits bits_of_memory(const void* data, std::size_t count) {
  Bits bits;
  append_bytes(bits, data, count);
  return bits;
}

using Operation = std::function<Bits(const ThreadBench&)>;

struct NamedOperation {
  const char* name;
  Operation run;
};

/// Moments, normalisation, both backward passes. With margins the tensors are strided.
Bits batch_norm(const ThreadBench& b, Margins margins, bool with_residual) {
  const Operand x = b.drawn(kShape, 1, margins), grad_y = b.drawn(kShape, 2, margins);
  const Operand residual = b.drawn(kShape, 3, margins), y = b.blank(kShape, margins);
  const Operand grad_x = b.blank(kShape, margins), grad_residual = b.blank(kShape, margins);
  const Operand gamma = b.drawn(kChannelRow, 4), beta = b.drawn(kChannelRow, 5);
  const Operand moments = b.blank({2, kChannels}), sums = b.blank({2, kChannels});
  const Operand saved = b.blank({3, kChannels});
  const Operand grad_gamma = b.drawn(kChannelRow, 6), grad_beta = b.drawn(kChannelRow, 7);
  const Operand mean = b.drawn(kChannelRow, 8), var = b.drawn(kChannelRow, 9);
  const AffineParameters affine{gamma.floats(), beta.floats()};
  const StatSlot forward{kShape.rows(), moments.floats()}, backward{kShape.rows(), sums.floats()};
  const Tensor added = with_residual ? residual.tensor() : Tensor{};
  const Tensor mask = with_residual ? y.tensor() : Tensor{};

  b.backend->norms().batch_norm_moments(x.tensor(), moments.floats(), 1);
  b.backend->norms().batch_norm_forward({.x = x.tensor(),
                                         .residual = added,
                                         .y = y.tensor(),
                                         .affine = affine,
                                         .slots = {&forward, 1},
                                         .relu = true,
                                         .saved = {saved.floats()},
                                         .running = {mean.floats(), var.floats(), 0.1}});
  b.backend->norms().batch_norm_backward_reduce({.x = x.tensor(),
                                                 .grad_y = grad_y.tensor(),
                                                 .y = mask,
                                                 .affine = affine,
                                                 .saved = {saved.floats()},
                                                 .relu = true,
                                                 .sums = sums.floats(),
                                                 .grad_weight = grad_gamma.floats(),
                                                 .grad_bias = grad_beta.floats()});
  b.backend->norms().batch_norm_backward_apply(
      {.x = x.tensor(),
       .grad_y = grad_y.tensor(),
       .y = mask,
       .affine = affine,
       .saved = {saved.floats()},
       .relu = true,
       .slots = {&backward, 1},
       .grad_x = grad_x.tensor(),
       .grad_residual = with_residual ? grad_residual.tensor() : Tensor{}});
  return bits_of(
      {&moments, &y, &saved, &mean, &var, &sums, &grad_gamma, &grad_beta, &grad_x, &grad_residual});
}

Bits inference(const ThreadBench& b) {
  const Operand x = b.drawn(kShape, 1), y = b.blank(kShape);
  const Operand mean = b.drawn(kChannelRow, 2);
  const Operand var(*b.backend, kChannelRow, Values(kChannels, 0.7F));
  b.backend->norms().batch_norm_inference({.x = x.tensor(),
                                           .residual = {},
                                           .y = y.tensor(),
                                           .affine = {},
                                           .mean = mean.floats(),
                                           .var = var.floats(),
                                           .relu = true});
  return bits_of({&y});
}

Storage labels_of(const ThreadBench& b, std::int64_t classes) {
  std::mt19937 generator(1);
  std::vector<std::uint16_t> labels(static_cast<std::size_t>(kShape.rows()));
  for (std::uint16_t& label : labels) {
    const auto drawn = generator() % static_cast<std::uint32_t>(classes + 2);
    label = static_cast<std::uint16_t>(drawn < static_cast<std::uint32_t>(classes) ? drawn : 255);
  }
  Storage storage = b.backend->allocate(labels.size() * sizeof labels[0]);
  b.backend->upload(b.labels(storage, kShape.with_channels(1)), labels.data());
  return storage;
}

Bits loss(const ThreadBench& b, std::int64_t classes, bool weighted) {
  const Shape shape = kShape.with_channels(classes);
  const Operand logits = b.drawn(shape, 1), gradient = b.blank(shape);
  const Operand weights(*b.backend, {1, classes}, random_values({1, classes}, 2));
  const Storage labels = labels_of(b, classes);
  const Storage sum = b.backend->allocate(sizeof(double));
  b.backend->losses().cross_entropy({logits.tensor(), b.labels(labels, shape.with_channels(1)), 255,
                                     weighted ? weights.floats() : nullptr, 7.5, gradient.tensor(),
                                     static_cast<double*>(sum.data())});
  Bits bits = bits_of({&gradient});
  append_bytes(bits, sum.data(), sizeof(double));
  return bits;
}

Bits squared_error(const ThreadBench& b, Margins margins) {
  const Operand output = b.drawn(kShape, 1, margins), target = b.drawn(kShape, 2);
  const Operand gradient = b.blank(kShape, margins);
  const Storage sum = b.backend->allocate(sizeof(double));
  const FormulaOf<SquaredError> formula{SquaredError{}};
  b.backend->losses().element_losses({.formula = &formula,
                                      .output = output.tensor(),
                                      .target = target.tensor(),
                                      .normalizer = 7.5,
                                      .grad_output = gradient.tensor(),
                                      .loss = static_cast<double*>(sum.data())});
  Bits bits = bits_of({&gradient});
  append_bytes(bits, sum.data(), sizeof(double));
  return bits;
}

Bits confusion(const ThreadBench& b) {
  constexpr std::int64_t kClasses = 11;
  const Operand logits = b.drawn(kShape.with_channels(kClasses), 1);
  const Storage labels = labels_of(b, kClasses);
  const Storage matrix = b.backend->allocate(kClasses * kClasses * sizeof(std::int64_t));
  b.backend->losses().confusion_matrix(logits.tensor(), b.labels(labels, kShape.with_channels(1)),
                                       static_cast<std::int64_t*>(matrix.data()));
  return bits_of_memory(matrix.data(), matrix.bytes());
}

Bits max_pool(const ThreadBench& b, const PoolGeometry& geometry, bool accumulate) {
  const Shape out = geometry.output_shape(kShape);
  const Operand x = b.drawn(kShape, 1), y = b.blank(out);
  const Operand grad_y = b.drawn(out, 2), grad_x = b.drawn(kShape, 3);
  const Storage winners = b.backend->allocate(static_cast<std::size_t>(out.elements()));
  b.backend->pooling().max_pool_forward(geometry, x.tensor(), y.tensor(), b.bytes(winners, out));
  b.backend->pooling().max_pool_backward(geometry, b.bytes(winners, out), grad_y.tensor(),
                                         grad_x.tensor(), accumulate);
  Bits bits = bits_of({&y, &grad_x});
  append_bytes(bits, winners.data(), winners.bytes());
  return bits;
}

Bits avg_pool(const ThreadBench& b, const PoolGeometry& geometry) {
  const Shape out = geometry.output_shape(kShape);
  const Operand x = b.drawn(kShape, 1), y = b.blank(out);
  const Operand grad_y = b.drawn(out, 2), grad_x = b.drawn(kShape, 3);
  b.backend->pooling().avg_pool_forward(geometry, x.tensor(), y.tensor());
  b.backend->pooling().avg_pool_backward(geometry, grad_y.tensor(), grad_x.tensor(), false);
  return bits_of({&y, &grad_x});
}

Bits adaptive_pool(const ThreadBench& b, std::int64_t height, std::int64_t width) {
  const Shape out{kShape.batch(), height, width, kChannels};
  const Operand x = b.drawn(kShape, 1), y = b.blank(out);
  const Operand grad_y = b.drawn(out, 2), grad_x = b.drawn(kShape, 3);
  b.backend->pooling().adaptive_avg_pool_forward(x.tensor(), y.tensor());
  b.backend->pooling().adaptive_avg_pool_backward(grad_y.tensor(), grad_x.tensor(), true);
  return bits_of({&y, &grad_x});
}

Bits upsample(const ThreadBench& b, bool align_corners, Margins margins) {
  const Operand x = b.drawn(kHalf, 1), y = b.blank(kShape, margins);
  const Operand grad_y = b.drawn(kShape, 2, margins), grad_x = b.blank(kHalf);
  b.backend->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), align_corners);
  b.backend->pooling().upsample_bilinear_backward(grad_y.tensor(), grad_x.tensor(), align_corners,
                                                  false);
  return bits_of({&y, &grad_x});
}

Bits pointwise(const ThreadBench& b, Margins margins) {
  const Operand x = b.drawn(kShape, 1), other = b.drawn(kShape, 2, margins);
  const Operand relu = b.blank(kShape), relu_grad = b.drawn(kShape, 3), sum = b.blank(kShape);
  const Operand dropped = b.blank(kShape, margins), copied = b.drawn(kShape, 4);
  b.backend->activations().activation_forward(ActivationKind::kRelu, x.tensor(), relu.tensor());
  b.backend->activations().activation_backward(ActivationKind::kRelu, relu.tensor(), other.tensor(),
                                               relu_grad.tensor(), true);
  b.backend->activations().binary_forward(BinaryKind::kAdd, x.tensor(), other.tensor(),
                                          sum.tensor());
  b.backend->activations().dropout(x.tensor(), dropped.tensor(), 0.3F, 17, 2, false);
  b.backend->copy(other.tensor(), copied.tensor(), true);
  return bits_of({&relu, &relu_grad, &sum, &dropped, &copied});
}

/// Two operands of one shape, and one with a row for each sample.
Bits element_functions(const ThreadBench& b, Margins margins) {
  const Operand x = b.drawn(kShape, 1, margins), other = b.drawn(kShape, 2);
  const Operand gate = b.drawn({kShape.batch(), kChannels}, 3), y = b.blank(kShape, margins);
  const Operand grad_x = b.drawn(kShape, 4), grad_gate = b.drawn({kShape.batch(), kChannels}, 5);
  const Operand product = b.blank(kShape), soft = b.blank(kShape), soft_grad = b.blank(kShape);
  const Operand sum = b.drawn(kChannelRow, 6);
  b.backend->activations().activation_forward(ActivationKind::kGelu, x.tensor(), y.tensor());
  b.backend->activations().binary_forward(BinaryKind::kMultiply, x.tensor(), gate.tensor(),
                                          product.tensor());
  b.backend->activations().binary_backward_left(BinaryKind::kPRelu, x.tensor(), gate.tensor(),
                                                other.tensor(), grad_x.tensor(), true);
  b.backend->activations().binary_backward_right(BinaryKind::kMultiply, x.tensor(), other.tensor(),
                                                 grad_gate.tensor(), true);
  b.backend->sums().sum_over_images(grad_gate.tensor(), sum.floats());
  b.backend->activations().softmax_forward(x.tensor(), soft.tensor());
  b.backend->activations().softmax_backward(soft.tensor(), other.tensor(), soft_grad.tensor(),
                                            false);
  return bits_of({&y, &grad_x, &grad_gate, &product, &soft, &soft_grad, &sum});
}

/// The sums of the gradient's channels. The convolution around them is as small as can be.
Bits bias_gradient(const ThreadBench& b) {
  ConvGeometry geometry;
  geometry.in_channels = 1;
  geometry.out_channels = kChannels;
  const Operand x = b.drawn(kShape.with_channels(1), 1), grad_y = b.drawn(kShape, 2);
  const Operand grad_weight = b.blank(kChannelRow), grad_bias = b.drawn(kChannelRow, 3);
  b.backend->convolutions().conv2d_backward_weights(geometry, x.tensor(), grad_y.tensor(),
                                                    grad_weight.floats(), grad_bias.floats());
  return bits_of({&grad_bias});
}

Bits optimizer(const ThreadBench& b, const Optimizer& rule) {
  const Shape shape{1, 600'001};
  const Operand grads0 = b.drawn(shape, 1), grads1 = b.drawn(shape, 2);
  const Operand weights0 = b.drawn(shape, 3), weights1 = b.blank(shape);
  const Operand state0 = b.drawn(shape, 4), state1(*b.backend, shape, Values(600'001, 0.25F));
  const Storage norm = b.backend->allocate(sizeof(double));
  const float* grads[] = {grads0.floats(), grads1.floats()};
  float* weights[] = {weights0.floats(), weights1.floats()};
  const ParameterRange ranges[] = {{3, 250'001, 1e-3F}, {250'001, 600'000, 0}};
  b.backend->optimizer().optimizer_update({.grads = grads,
                                           .weights = weights,
                                           .state = {state0.floats(), state1.floats()},
                                           .ranges = ranges,
                                           .lr = 0.1F,
                                           .optimizer = rule,
                                           .updates = {.begun = 3},
                                           .squared_norm = static_cast<double*>(norm.data())});
  Bits bits = bits_of({&weights0, &weights1, &state0, &state1});
  append_bytes(bits, norm.data(), sizeof(double));
  return bits;
}

std::vector<NamedOperation> operations() {
  const PoolGeometry overlapping{3, 3, 2, 2, 1, 1};
  const Margins beside{16, 16};
  return {
      {"BatchNorm", [](const ThreadBench& b) { return batch_norm(b, {}, false); }},
      {"BatchNorm with a residual", [](const ThreadBench& b) { return batch_norm(b, {}, true); }},
      {"BatchNorm, strided", [=](const ThreadBench& b) { return batch_norm(b, beside, false); }},
      {"BatchNorm by running statistics", inference},
      {"loss", [](const ThreadBench& b) { return loss(b, 11, false); }},
      {"loss with class weights", [](const ThreadBench& b) { return loss(b, 19, true); }},
      {"losses of elements", [](const ThreadBench& b) { return squared_error(b, {}); }},
      {"losses of elements, strided",
       [=](const ThreadBench& b) { return squared_error(b, beside); }},
      {"confusion matrix", confusion},
      {"max-pooling", [](const ThreadBench& b) { return max_pool(b, {}, false); }},
      {"max-pooling 3x3", [=](const ThreadBench& b) { return max_pool(b, overlapping, true); }},
      {"average-pooling", [](const ThreadBench& b) { return avg_pool(b, {}); }},
      {"average-pooling 3x3", [=](const ThreadBench& b) { return avg_pool(b, overlapping); }},
      {"global average-pooling", [](const ThreadBench& b) { return adaptive_pool(b, 1, 1); }},
      {"adaptive average-pooling", [](const ThreadBench& b) { return adaptive_pool(b, 7, 5); }},
      {"upsampling", [](const ThreadBench& b) { return upsample(b, false, {}); }},
      {"upsampling into a concatenation",
       [=](const ThreadBench& b) { return upsample(b, false, beside); }},
      {"upsampling with aligned corners",
       [](const ThreadBench& b) { return upsample(b, true, {}); }},
      {"ReLU, sum, dropout, copy", [](const ThreadBench& b) { return pointwise(b, {}); }},
      {"ReLU, sum, dropout, copy, strided",
       [=](const ThreadBench& b) { return pointwise(b, beside); }},
      {"element functions", [](const ThreadBench& b) { return element_functions(b, {}); }},
      {"element functions, strided",
       [=](const ThreadBench& b) { return element_functions(b, beside); }},
      {"the bias's gradient", bias_gradient},
      {"SGD and the gradient's norm",
       [](const ThreadBench& b) { return optimizer(b, Sgd{.momentum = 0.9F}); }},
      {"AdamW and the gradient's norm", [](const ThreadBench& b) { return optimizer(b, AdamW{}); }},
  };
}

}  // namespace

TEST_CASE("host threads are those of the cores that the process may use") {
  int threads = 0;
  std::thread([&] {  // alone is bound, so that the other test cases are not
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &core);
    if (sched_setaffinity(0, sizeof core, &core) == 0) threads = host_threads();
  })
      .join();
  CHECK(threads == 1);
}

TEST_CASE("no operation's bits depend on the number of host threads") {
  for (const NamedOperation& operation : operations()) {
    CAPTURE(std::string(operation.name));
    const Bits expected = operation.run(ThreadBench(1));
    CHECK(!expected.empty());
    for (const int threads : {2, 5, 16}) {
      CAPTURE(threads);
      const bool equal = operation.run(ThreadBench(threads)) == expected;
      CHECK(equal);
    }
  }
}

}  // namespace lockstep::test
