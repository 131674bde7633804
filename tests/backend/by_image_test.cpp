// Sums that are kept image by image (Backend::sums_by_image): each image's are its own, and they
// are put together in the order that the interface promises.

#include <doctest/doctest.h>

#include <numeric>

#include "backend/operand.h"
#include "lockstep/core/check.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kImages = 5;
constexpr std::int64_t kChannels = 6;
const Shape kShape{kImages, 18, 23, kChannels};  // several runs of rows per image
const Shape kRow{1, kChannels};

struct Bench {
  std::unique_ptr<Backend> backend = make_backend(Device{}, 3);

  Operand drawn(const Shape& shape, std::uint32_t seed) const {
    return Operand(*backend, shape, random_values(shape, seed));
  }
  Operand filled(const Shape& shape, float value = 0) const {
    return Operand(*backend, shape, Values(static_cast<std::size_t>(shape.elements()), value));
  }
};

Values part_of(const Values& values, std::int64_t image, std::int64_t count) {
  return {values.begin() + image * count, values.begin() + (image + 1) * count};
}

/// Of up to five images, by the definition.
Values tree(const std::vector<Values>& images) {
  Values sum(images.front().size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float left = (images[0][i] + images[1][i]) + (images[2][i] + images[3][i]);
    sum[i] = left + images[4][i];
  }
  return sum;
}

}  // namespace

TEST_CASE("moments of images are those of each image alone") {
  const Bench bench;
  const Operand x = bench.drawn(kShape, 1);
  const Operand all = bench.filled({kImages, 2 * kChannels});
  const Operand alone = bench.filled({1, 2 * kChannels});
  bench.backend->batch_norm_moments(x.tensor(), all.floats(), kImages);
  for (std::int64_t image = 0; image < kImages; ++image) {
    bench.backend->batch_norm_moments(x.tensor().sample_range(image, 1), alone.floats(), 1);
    CHECK(part_of(all.get(), image, 2 * kChannels) == alone.get());
  }
  CHECK_THROWS_WITH_AS(bench.backend->batch_norm_moments(x.tensor(), all.floats(), 4),
                       doctest::Contains("2070 rows are no 4 equal parts"), Error);
}

TEST_CASE("slots of any parts are merged to the same bits") {
  const Bench bench;
  const Operand x = bench.drawn(kShape, 1), y = bench.filled(kShape), z = bench.filled(kShape);
  const Operand moments = bench.filled({kImages, 2 * kChannels});
  const Operand saved = bench.filled({3, kChannels}), other = bench.filled({3, kChannels});
  bench.backend->batch_norm_moments(x.tensor(), moments.floats(), kImages);
  const std::int64_t rows = kShape.rows_per_sample();
  const StatSlot all{kImages * rows, moments.floats(), kImages};
  const std::array ranks{StatSlot{2 * rows, moments.floats(), 2}, StatSlot{},
                         StatSlot{3 * rows, moments.floats() + 2 * 2 * kChannels, 3}};
  BatchNormForward forward;
  forward.x = x.tensor();
  forward.y = y.tensor();
  forward.slots = {&all, 1};
  forward.saved = {saved.floats()};
  bench.backend->batch_norm_forward(forward);
  forward.y = z.tensor();
  forward.slots = ranks;
  forward.saved = {other.floats()};
  bench.backend->batch_norm_forward(forward);
  CHECK(saved.get() == other.get());
  CHECK(y.get() == z.get());
}

TEST_CASE("gradients of gamma and beta are added in the tree over the images") {
  const Bench bench;
  const Operand x = bench.drawn(kShape, 1), grad_y = bench.drawn(kShape, 2);
  const Operand gamma = bench.drawn(kRow, 3), beta = bench.drawn(kRow, 4);
  const Operand saved = bench.filled({3, kChannels}, 0.75F);
  const auto reduce = [&](std::int64_t first, std::int64_t count, const Operand& sums,
                          const Operand& grad_gamma, const Operand& grad_beta) {
    bench.backend->batch_norm_backward_reduce({.x = x.tensor().sample_range(first, count),
                                               .grad_y = grad_y.tensor().sample_range(first, count),
                                               .y = {},
                                               .affine = {gamma.floats(), beta.floats()},
                                               .saved = {saved.floats()},
                                               .relu = true,
                                               .sums = sums.floats(),
                                               .grad_weight = grad_gamma.floats(),
                                               .grad_bias = grad_beta.floats(),
                                               .parts = count});
  };
  const Operand sums = bench.filled({kImages, 2 * kChannels});
  const Operand grad_gamma = bench.filled(kRow), grad_beta = bench.filled(kRow);
  reduce(0, kImages, sums, grad_gamma, grad_beta);
  std::vector<Values> gammas, betas;
  for (std::int64_t image = 0; image < kImages; ++image) {
    const Operand own_sums = bench.filled({1, 2 * kChannels});
    const Operand own_gamma = bench.filled(kRow), own_beta = bench.filled(kRow);
    reduce(image, 1, own_sums, own_gamma, own_beta);
    CHECK(part_of(sums.get(), image, 2 * kChannels) == own_sums.get());
    gammas.push_back(own_gamma.get());
    betas.push_back(own_beta.get());
  }
  CHECK(grad_gamma.get() == tree(gammas));
  CHECK(grad_beta.get() == tree(betas));
}

TEST_CASE("gradients of a bias are added in the tree over the images") {
  const Bench bench;
  ConvGeometry geometry;
  geometry.in_channels = 3;
  geometry.out_channels = kChannels;
  const Shape large{kImages, 40, 35, 3};  // more than one part of rows per image
  const Shape out = geometry.output_shape(large);
  const Operand x = bench.drawn(large, 1), grad_y = bench.drawn(out, 2);
  const auto bias_of = [&](std::int64_t first, std::int64_t count) {
    const Operand weight = bench.filled({1, geometry.weight_elements()});
    const Operand bias = bench.filled(kRow);
    bench.backend->prepare_conv2d(geometry, large.with_batch(count), DType::kFloat32, true, false);
    bench.backend->conv2d_backward_weights(geometry, x.tensor().sample_range(first, count),
                                           grad_y.tensor().sample_range(first, count),
                                           weight.floats(), bias.floats());
    return bias.get();
  };
  std::vector<Values> images;
  for (std::int64_t image = 0; image < kImages; ++image) images.push_back(bias_of(image, 1));
  CHECK(bias_of(0, kImages) == tree(images));
}

TEST_CASE("losses of images are those of each image alone, and add up to the loss") {
  const Bench bench;
  const Operand logits = bench.drawn(kShape, 1);
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(kShape.rows()));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<std::uint8_t>(i % 7 == 0 ? 255 : i % kChannels);
  }
  const Tensor all(labels.data(), kShape.with_channels(1), DType::kUInt8);
  double loss = 0;
  std::vector<double> images(kImages, 1.0);
  bench.backend->cross_entropy({.logits = logits.tensor(),
                                .labels = all,
                                .normalizer = 100.0,
                                .grad_logits = {},
                                .loss = &loss,
                                .image_losses = images.data()});
  double sum = 0;
  for (std::int64_t image = 0; image < kImages; ++image) {
    double alone = 0;
    bench.backend->cross_entropy({.logits = logits.tensor().sample_range(image, 1),
                                  .labels = all.sample_range(image, 1),
                                  .normalizer = 100.0,
                                  .grad_logits = {},
                                  .loss = &alone});
    CHECK(alone > 0);
    CHECK(images[static_cast<std::size_t>(image)] == 1.0 + alone);
    sum += alone;
  }
  CHECK(loss == sum);
}

TEST_CASE("mean squared errors of images are those of each image alone, and add up to the loss") {
  const Bench bench;
  const Operand output = bench.drawn(kShape, 1), target = bench.drawn(kShape, 2);
  double loss = 0;
  std::vector<double> images(kImages, 1.0);
  bench.backend->mean_squared_error(
      {output.tensor(), target.tensor(), 100.0, {}, &loss, images.data()});
  double sum = 0;
  for (std::int64_t image = 0; image < kImages; ++image) {
    double alone = 0;
    bench.backend->mean_squared_error({output.tensor().sample_range(image, 1),
                                       target.tensor().sample_range(image, 1),
                                       100.0,
                                       {},
                                       &alone});
    CHECK(images[static_cast<std::size_t>(image)] == 1.0 + alone);
    sum += alone;
  }
  CHECK(loss == sum);
}

TEST_CASE("an update adds the parts in the order of its joins, and squares block by block") {
  const Bench bench;
  constexpr std::int64_t kElements = 2 * kNormBlock + 100;
  const Shape flat{1, kElements};
  std::vector<Operand> parts;
  std::vector<const float*> grads;
  std::vector<Values> values;
  for (std::uint32_t part = 0; part < 5; ++part) {
    parts.push_back(bench.drawn(flat, part));
    grads.push_back(parts.back().floats());
    values.push_back(parts.back().get());
  }
  const std::array joins{0, 1, 0, 2, 1};
  const std::array ranges{ParameterRange{0, kNormBlock + 50},
                          ParameterRange{kNormBlock + 50, kElements}};
  const Operand weights = bench.filled(flat);
  const std::array<float*, 1> weight_of{weights.floats()};
  const Operand velocity = bench.filled(flat);
  std::vector<double> squares(3);
  OptimizerShard shard{.grads = grads,
                       .joins = joins,
                       .weights = weight_of,
                       .state = {velocity.floats()},
                       .ranges = ranges,
                       .lr = 1.0F,
                       .rule = SgdRule{},
                       .block_squares = squares.data()};
  bench.backend->optimizer_update(shard);
  const Values sum = tree(values);
  CHECK(velocity.get() == sum);
  for (std::size_t block = 0; block < 3; ++block) {
    double expected = 0;
    const auto end = std::min<std::size_t>((block + 1) * kNormBlock, kElements);
    for (std::size_t i = block * kNormBlock; i < end; ++i) {
      expected += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
    }
    CHECK(squares[block] == doctest::Approx(expected).epsilon(1e-12));
  }
  for (const std::array<int, 5>& wrong :
       {std::array{0, 1, 0, 2, 0}, {1, 0, 0, 2, 1}, {0, 2, 0, 1, 1}, {0, -1, 2, 2, 1}}) {
    shard.joins = wrong;
    CHECK_THROWS_WITH_AS(bench.backend->optimizer_update(shard),
                         doctest::Contains("the order of the sum does not fit the 5 gradients"),
                         Error);
  }
}

}  // namespace lockstep::test
