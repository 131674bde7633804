// A loss scale that follows the gradients, on CPU devices in fp32, where a power of two changes no
// bit: what is skipped, by whom, and what follows.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/check.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

DataParallelOptions scaled(int ranks, float initial, std::int64_t growth_interval = 2000) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync);
  options.loss_scale = LossScaleOptions{initial, growth_interval};
  return options;
}

/// `count` large images from `first` on, of which the gradient alone is large: nothing comes out of
/// the first convolution.
Batch overflowing_batch(DataParallel& run, std::int64_t first = 0, std::int64_t count = 5) {
  set_parameter(run, "encoder.0.0.conv.weight", 0.0F);
  set_parameter(run, "encoder.0.0.bn.weight", 1e20F);
  Batch batch = toy_batch(5, 1);
  const std::int64_t image = 3 * 16 * 16;
  for (std::int64_t i = first * image; i < (first + count) * image; ++i) batch.images[i] *= 1e30F;
  return batch;
}

}  // namespace

TEST_CASE("a loss scale changes no bit where nothing over- or underflows") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    DataParallelOptions plain = toy_options(4, BatchNormMode::kSync);
    DataParallelOptions with_scale = scaled(4, 65536);
    if (sums) plain = all_reduced(plain), with_scale = all_reduced(with_scale);
    const auto run = make_toy(plain), other = make_toy(with_scale);
    const Outcome expected = outcome_of(*run, train(*run));
    CHECK(outcome_of(*other, train(*other)) == expected);
    CHECK(other->loss_scale()->good_steps == 3);
    const StepResult a = run->train_step(toy_batch(5, 7), 7, 0.1F);
    const StepResult b = other->train_step(toy_batch(5, 7), 7, 0.1F);
    CHECK(a.grad_norm == b.grad_norm);
    CHECK_FALSE(a.loss_scale.has_value());
    CHECK(b.loss_scale == other->loss_scale());
    CHECK_FALSE(run->loss_scale().has_value());
  }
}

// On 2 ranks images 2 and 4 are the second terms that a rank has in the sum over the batch.
TEST_CASE("a gradient that overflows in one image alone is seen, whichever it is") {
  for (std::int64_t image = 0; image < 5; ++image) {
    CAPTURE(image);
    const auto run = make_toy(scaled(2, 2));  // the other images' gradients fit
    run->train_step(toy_batch(5, 0), 0, 0.1F);
    CHECK(run->train_step(overflowing_batch(*run, image, 1), 1, 0.1F).skipped);
  }
}

TEST_CASE("a step whose gradient overflows is left out by all replicas, and the scale halves") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    const DataParallelOptions options = scaled(3, 0x1p100F);
    const auto run = make_toy(sums ? all_reduced(options) : options);
    run->train_step(toy_batch(5, 0), 0, 0.1F);
    const Batch batch = overflowing_batch(*run);
    const std::vector<float> before = parameters(*run, 0);
    const OptimizerState momentum = run->optimizer_state();
    const StepResult skipped = run->train_step(batch, 1, 0.1F);
    CHECK(skipped.skipped);
    CHECK(std::isfinite(skipped.loss));
    CHECK(std::isnan(skipped.grad_norm));
    for (int rank = 0; rank < 3; ++rank) CHECK(parameters(*run, rank) == before);
    CHECK(run->optimizer_state() == momentum);
    CHECK(run->loss_scale() == LossScaleState{0x1p99F, 0x1p-99F, 0, 1});
    CHECK(skipped.loss_scale == run->loss_scale());
  }
}

TEST_CASE("a gradient that overflows on one replica alone is skipped by all") {
  DataParallelOptions options = scaled(4, 65536);
  options.norm.options.mode = BatchNormMode::kLocal;
  const auto run = make_toy(options);
  const Batch batch = overflowing_batch(*run, 2, 2);  // rank 1's
  const std::vector<float> before = parameters(*run, 0);
  CHECK(run->train_step(batch, 0, 0.1F).skipped);
  for (const float gradient : gradients(*run, 0)) REQUIRE(std::isfinite(gradient));
  for (int rank = 0; rank < 4; ++rank) CHECK(parameters(*run, rank) == before);
  CHECK(run->loss_scale()->scale == 32768);
}

TEST_CASE("the scale doubles after a number of good steps in a row, up to what a float holds") {
  const auto run = make_toy(scaled(2, 1024, 3));
  std::vector<float> scales;
  for (std::int64_t step = 0; step < 7; ++step) {
    scales.push_back(run->train_step(toy_batch(5, step), step, 0.01F).loss_scale->scale);
  }
  CHECK(scales == std::vector<float>{1024, 1024, 2048, 2048, 2048, 4096, 4096});
  CHECK(run->loss_scale() == LossScaleState{4096, 1.0F / 4096, 1, 0});
  // A skipped step begins the count anew. Without a label there is no gradient to overflow.
  Batch nothing = toy_batch(4, 0);
  std::fill(nothing.labels.begin(), nothing.labels.end(), Label{255});
  nothing.class_pixels.assign(kClasses, 0);
  run->set_loss_scale({0x1p127F, 0, 2, 5});
  CHECK(run->train_step(nothing, 7, 0.01F).loss_scale == LossScaleState{0x1p127F, 0x1p-127F, 0, 5});
  run->set_loss_scale({0x1p127F, 0, 2, 5});
  set_parameter(*run, "encoder.0.0.bn.weight", 1e4F);
  CHECK(run->train_step(toy_batch(5, 8), 8, 0.01F).loss_scale ==
        LossScaleState{0x1p126F, 0x1p-126F, 0, 6});
}

TEST_CASE("a run goes on with its loss scale bit for bit") {
  const DataParallelOptions options = scaled(2, 0x1p127F, 2);
  const auto whole = make_toy(options), first = make_toy(options), second = make_toy(options);
  for (DataParallel* run : {whole.get(), first.get()}) {
    set_parameter(*run, "encoder.0.0.bn.weight", 100);  // makes gradients large
  }
  for (std::int64_t step = 0; step < 9; ++step) whole->train_step(toy_batch(5, step), step, 0.01F);
  for (std::int64_t step = 0; step < 4; ++step) first->train_step(toy_batch(5, step), step, 0.01F);
  copy_parameters(*first, *second);
  second->set_optimizer_state(first->optimizer_state());
  second->set_loss_scale(*first->loss_scale());
  for (std::int64_t step = 4; step < 9; ++step) second->train_step(toy_batch(5, step), step, 0.01F);
  CHECK(whole->loss_scale()->skipped > 0);
  CHECK(second->loss_scale() == whole->loss_scale());
  CHECK(parameters(*second, 1) == parameters(*whole, 1));
}

TEST_CASE("a loss that is not finite ends a step with a loss scale, too, and leaves the scale") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    DataParallelOptions options = scaled(4, 65536);
    options.norm.options.mode = BatchNormMode::kLocal;
    const auto run = make_toy(sums ? all_reduced(options) : options);
    run->train_step(toy_batch(5, 0), 0, 0.1F);
    const std::vector<float> before = parameters(*run, 0);
    const auto scale = run->loss_scale();
    Batch batch = toy_batch(5, 1);
    batch.images[2 * 3 * 16 * 16 + 5] = std::numeric_limits<float>::quiet_NaN();  // rank 1
    CHECK_THROWS_WITH_AS(run->train_step(batch, 1, 0.1F),
                         doctest::Contains("step 1: the loss of replica 1"), NonFiniteError);
    for (int rank = 0; rank < 4; ++rank) CHECK(parameters(*run, rank) == before);
    CHECK(run->loss_scale() == scale);
    CHECK_FALSE(run->train_step(toy_batch(5, 2), 2, 0.1F).skipped);
  }
}

TEST_CASE("a gradient that overflows without being magnified ends the run") {
  const auto run = make_toy(scaled(2, 2));
  const Batch batch = overflowing_batch(*run);
  const std::vector<float> before = parameters(*run, 0);
  CHECK(run->train_step(batch, 0, 0.1F).loss_scale->scale == 1);
  CHECK_THROWS_WITH_AS(run->train_step(batch, 1, 0.1F),
                       doctest::Contains("step 1: the gradient is not finite although"),
                       NonFiniteError);
  CHECK(parameters(*run, 0) == before);
}

TEST_CASE("a loss scale that is no power of two is refused") {
  for (const float initial : {0.0F, 0.5F, 3.0F, -2.0F, INFINITY, NAN}) {
    CAPTURE(initial);
    CHECK_THROWS_AS(make_toy(scaled(1, initial)), Error);
  }
  CHECK_THROWS_AS(make_toy(scaled(1, 2, 0)), Error);
  CHECK_THROWS_AS(make_toy(toy_options(1, BatchNormMode::kSync))->set_loss_scale({}), Error);
}

}  // namespace lockstep::test
