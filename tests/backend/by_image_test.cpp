// Sums that are kept image by image (Backend::sums_by_image): each image's are its own, and they
// are put together in the order that the interface promises. On every backend that can.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "backend/formulas.h"
#include "backend/operand.h"
#include "lockstep/core/check.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kImages = 5;
constexpr std::int64_t kImageChannels = 6;
const Shape kImagesShape{kImages, 18, 23, kImageChannels};  // several runs of rows per image
const Shape kRow{1, kImageChannels};

/// Activations are of the type that is tested, parameters and sums fp32.
struct ImageBench {
  TypedBackend on;

  Operand drawn(const Shape& shape, std::uint32_t seed) const {
    return Operand(on, shape, on.random(shape, seed));
  }
  Operand zeros(const Shape& shape) const {
    return Operand(on, shape, Values(static_cast<std::size_t>(shape.elements())));
  }
  Operand parameters(const Shape& shape, std::uint32_t seed) const {
    return Operand(on.backend, shape, random_values(shape, seed));
  }
  Operand filled(const Shape& shape, float value = 0) const {
    return Operand(on.backend, shape, Values(static_cast<std::size_t>(shape.elements()), value));
  }
};

template <typename Body>
void for_each_image_bench(const Body& body) {
  for (NamedBackend& named : backends_by_image()) {
    for (const DType dtype : named.types) {
      CAPTURE(named.name);
      CAPTURE(std::string(to_string(dtype)));
      REQUIRE(named.backend->sums_by_image());
      body(ImageBench{TypedBackend(*named.backend, dtype)});
    }
  }
}

/// In device memory.
template <typename T>
class Numbers {
 public:
  Numbers(Backend& backend, std::vector<T> values)
      : backend_(backend),
        count_(values.size()),
        storage_(backend.allocate(values.size() * sizeof(T))) {
    backend_.upload(tensor(), values.data());
    backend_.synchronize();
  }
  T* data() const { return static_cast<T*>(storage_.data()); }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    backend_.download(values.data(), tensor());
    backend_.synchronize();
    return values;
  }

 private:
  Tensor tensor() const {
    const auto bytes = static_cast<std::int64_t>(count_ * sizeof(T));
    return {storage_.data(), Shape{1, bytes}, DType::kUInt8};
  }

  Backend& backend_;
  std::size_t count_;
  Storage storage_;
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

/// Slots [5, 2, C] of one rank, of three ranks and of five.
std::vector<std::vector<StatSlot>> spread(const Operand& parts, std::int64_t rows) {
  const auto of = [&](std::int64_t first, std::int64_t count) {
    return StatSlot{count * rows, parts.floats() + first * 2 * kImageChannels, count};
  };
  return {{of(0, 5)},
          {of(0, 2), StatSlot{}, of(2, 3)},
          {of(0, 1), of(1, 1), of(2, 1), of(3, 1), of(4, 1)}};
}

}  // namespace

TEST_CASE("moments of images are those of each image alone") {
  for_each_image_bench([](const ImageBench& bench) {
    const Operand x = bench.drawn(kImagesShape, 1);
    const Operand all = bench.filled({kImages, 2 * kImageChannels});
    const Operand alone = bench.filled({1, 2 * kImageChannels});
    bench.on->norms().batch_norm_moments(x.tensor(), all.floats(), kImages);
    for (std::int64_t image = 0; image < kImages; ++image) {
      bench.on->norms().batch_norm_moments(x.tensor().sample_range(image, 1), alone.floats(), 1);
      CHECK(part_of(all.get(), image, 2 * kImageChannels) == alone.get());
    }
    CHECK_THROWS_WITH_AS(bench.on->norms().batch_norm_moments(x.tensor(), all.floats(), 4),
                         doctest::Contains("2070 rows are no 4 equal parts"), Error);
  });
}

TEST_CASE("slots of any parts are merged to the same bits") {
  for_each_image_bench([](const ImageBench& bench) {
    const Operand x = bench.drawn(kImagesShape, 1), grad_y = bench.drawn(kImagesShape, 2);
    const Operand y = bench.zeros(kImagesShape), grad_x = bench.zeros(kImagesShape);
    const Operand moments = bench.filled({kImages, 2 * kImageChannels});
    const Operand sums = bench.parameters({kImages, 2 * kImageChannels}, 3);
    bench.on->norms().batch_norm_moments(x.tensor(), moments.floats(), kImages);
    std::vector<std::array<Values, 3>> results;
    for (std::size_t ranks = 0; ranks < 3; ++ranks) {
      const Operand saved = bench.filled({3, kImageChannels});
      const auto slots = spread(moments, kImagesShape.rows_per_sample())[ranks];
      const auto gradient_slots = spread(sums, kImagesShape.rows_per_sample())[ranks];
      BatchNormForward forward;
      forward.x = x.tensor();
      forward.y = y.tensor();
      forward.slots = slots;
      forward.saved = {saved.floats()};
      bench.on->norms().batch_norm_forward(forward);
      BatchNormBackwardApply apply;
      apply.x = x.tensor();
      apply.grad_y = grad_y.tensor();
      apply.saved = {saved.floats()};
      apply.slots = gradient_slots;
      apply.grad_x = grad_x.tensor();
      bench.on->norms().batch_norm_backward_apply(apply);
      results.push_back({saved.get(), y.get(), grad_x.get()});
    }
    CHECK((results[0] == results[1]));
    CHECK((results[0] == results[2]));
  });
}

TEST_CASE("gradients of gamma and beta are added in the tree over the images") {
  for_each_image_bench([](const ImageBench& bench) {
    const Operand x = bench.drawn(kImagesShape, 1), grad_y = bench.drawn(kImagesShape, 2);
    const Operand gamma = bench.parameters(kRow, 3), beta = bench.parameters(kRow, 4);
    const Operand saved = bench.filled({3, kImageChannels}, 0.75F);
    const auto reduce = [&](std::int64_t first, std::int64_t count, const Operand& sums,
                            float* grad_gamma, float* grad_beta) {
      bench.on->norms().batch_norm_backward_reduce(
          {.x = x.tensor().sample_range(first, count),
           .grad_y = grad_y.tensor().sample_range(first, count),
           .y = {},
           .affine = {gamma.floats(), beta.floats()},
           .saved = {saved.floats()},
           .relu = true,
           .sums = sums.floats(),
           .grad_weight = grad_gamma,
           .grad_bias = grad_beta,
           .parts = count});
    };
    const Operand sums = bench.filled({kImages, 2 * kImageChannels});
    const Operand grad_gamma = bench.filled(kRow), grad_beta = bench.filled(kRow);
    reduce(0, kImages, sums, grad_gamma.floats(), grad_beta.floats());
    std::vector<Values> gammas, betas;
    for (std::int64_t image = 0; image < kImages; ++image) {
      const Operand own_sums = bench.filled({1, 2 * kImageChannels});
      const Operand own_gamma = bench.filled(kRow), own_beta = bench.filled(kRow);
      reduce(image, 1, own_sums, own_gamma.floats(), own_beta.floats());
      CHECK(part_of(sums.get(), image, 2 * kImageChannels) == own_sums.get());
      gammas.push_back(own_gamma.get());
      betas.push_back(own_beta.get());
    }
    CHECK(grad_gamma.get() == tree(gammas));
    CHECK(grad_beta.get() == tree(betas));
    const Operand only_sums = bench.filled({kImages, 2 * kImageChannels});
    reduce(0, kImages, only_sums, nullptr, nullptr);
    CHECK(only_sums.get() == sums.get());
  });
}

TEST_CASE("gradients of a bias are added in the tree over the images") {
  for_each_image_bench([](const ImageBench& bench) {
    const ConvGeometry geometry = same_padding_conv(3, kImageChannels, 1);
    const Shape large{kImages, 40, 35, 3};  // more than one part of rows per image
    const Operand x = bench.drawn(large, 1), grad_y = bench.drawn(geometry.output_shape(large), 2);
    const auto bias_of = [&](std::int64_t first, std::int64_t count) {
      const Operand weight = bench.filled({1, geometry.weight_elements()});
      const Operand bias = bench.filled(kRow);
      bench.on->convolutions().prepare_conv2d(geometry, large.with_batch(count), bench.on.dtype,
                                              true, false);
      bench.on->convolutions().conv2d_backward_weights(
          geometry, x.tensor().sample_range(first, count),
          grad_y.tensor().sample_range(first, count), weight.floats(), bias.floats());
      return bias.get();
    };
    std::vector<Values> images;
    for (std::int64_t image = 0; image < kImages; ++image) images.push_back(bias_of(image, 1));
    CHECK(bias_of(0, kImages) == tree(images));
  });
}

TEST_CASE("a convolution of images is that of each image alone, and its weights' gradient a tree") {
  for_each_image_bench([](const ImageBench& bench) {
    const ConvGeometry geometry = same_padding_conv(3, 4, 3);
    const Shape shape{kImages, 7, 9, 3};  // images that do not lie at multiples of 16 bytes
    const Shape out = geometry.output_shape(shape);
    const Operand x = bench.drawn(shape, 1), grad_y = bench.drawn(out, 2);
    const Operand weight = bench.parameters(geometry.weight_shape(), 3);
    const auto passes = [&](std::int64_t first, std::int64_t count) {
      const Operand y = bench.zeros(out.with_batch(count));
      const Operand grad_x = bench.zeros(shape.with_batch(count));
      const Operand gradient = bench.filled(geometry.weight_shape());
      const Tensor own_grad_y = grad_y.tensor().sample_range(first, count);
      bench.on->convolutions().prepare_conv2d(geometry, shape.with_batch(count), bench.on.dtype,
                                              true, true);
      bench.on->convolutions().conv2d_forward(geometry, x.tensor().sample_range(first, count),
                                              weight.floats(), nullptr, y.tensor());
      bench.on->convolutions().conv2d_backward_data(geometry, own_grad_y, weight.floats(),
                                                    grad_x.tensor());
      bench.on->convolutions().conv2d_backward_weights(
          geometry, x.tensor().sample_range(first, count), own_grad_y, gradient.floats(), nullptr);
      return std::array{y.get(), grad_x.get(), gradient.get()};
    };
    const auto all = passes(0, kImages);
    std::vector<Values> gradients;
    for (std::int64_t image = 0; image < kImages; ++image) {
      CAPTURE(image);
      const auto alone = passes(image, 1);
      CHECK(part_of(all[0], image, out.with_batch(1).elements()) == alone[0]);
      CHECK(part_of(all[1], image, shape.with_batch(1).elements()) == alone[1]);
      gradients.push_back(alone[2]);
    }
    CHECK(all[2] == tree(gradients));
  });
}

TEST_CASE("losses of images are those of each image alone, and add up to the loss") {
  for_each_image_bench([](const ImageBench& bench) {
    const Operand logits = bench.drawn(kImagesShape, 1), gradient = bench.zeros(kImagesShape);
    std::vector<std::uint16_t> values(static_cast<std::size_t>(kImagesShape.rows()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::uint16_t>(i % 7 == 0 ? 255 : i % kImageChannels);
    }
    const Numbers<std::uint16_t> labels(bench.on.backend, values);
    const Tensor all(labels.data(), kImagesShape.with_channels(1), DType::kUInt16);
    const Numbers<double> loss(bench.on.backend, {0.0});
    const Numbers<double> images(bench.on.backend, std::vector<double>(kImages, 1.0));
    bench.on->losses().cross_entropy({.logits = logits.tensor(),
                                      .labels = all,
                                      .normalizer = 100.0,
                                      .grad_logits = gradient.tensor(),
                                      .loss = loss.data(),
                                      .image_losses = images.data()});
    double sum = 0;
    for (std::int64_t image = 0; image < kImages; ++image) {
      const Numbers<double> alone(bench.on.backend, {0.0});
      const Operand own = bench.zeros(kImagesShape.with_batch(1));
      bench.on->losses().cross_entropy({.logits = logits.tensor().sample_range(image, 1),
                                        .labels = all.sample_range(image, 1),
                                        .normalizer = 100.0,
                                        .grad_logits = own.tensor(),
                                        .loss = alone.data()});
      CHECK(alone.get()[0] > 0);
      CHECK(images.get()[static_cast<std::size_t>(image)] == 1.0 + alone.get()[0]);
      CHECK(part_of(gradient.get(), image, kImagesShape.with_batch(1).elements()) == own.get());
      sum += alone.get()[0];
    }
    CHECK(loss.get()[0] == sum);
  });
}

TEST_CASE("losses of elements of images are those of each image alone, and add up to the loss") {
  for_each_image_bench([](const ImageBench& bench) {
    const Operand output = bench.drawn(kImagesShape, 1), target = bench.parameters(kImagesShape, 2);
    const Operand gradient = bench.zeros(kImagesShape);
    const Numbers<double> loss(bench.on.backend, {0.0});
    const Numbers<double> images(bench.on.backend, std::vector<double>(kImages, 1.0));
    const FormulaOf<SquaredError> formula{SquaredError{}};
    bench.on->losses().element_losses({.formula = &formula,
                                       .output = output.tensor(),
                                       .target = target.tensor(),
                                       .normalizer = 100.0,
                                       .grad_output = gradient.tensor(),
                                       .loss = loss.data(),
                                       .image_losses = images.data()});
    double sum = 0;
    for (std::int64_t image = 0; image < kImages; ++image) {
      const Numbers<double> alone(bench.on.backend, {0.0});
      const Operand own = bench.zeros(kImagesShape.with_batch(1));
      bench.on->losses().element_losses({.formula = &formula,
                                         .output = output.tensor().sample_range(image, 1),
                                         .target = target.tensor().sample_range(image, 1),
                                         .normalizer = 100.0,
                                         .grad_output = own.tensor(),
                                         .loss = alone.data()});
      CHECK(images.get()[static_cast<std::size_t>(image)] == 1.0 + alone.get()[0]);
      CHECK(part_of(gradient.get(), image, kImagesShape.with_batch(1).elements()) == own.get());
      sum += alone.get()[0];
    }
    CHECK(loss.get()[0] == sum);
  });
}

TEST_CASE("sums of slots of any parts have the same bits") {
  for_each_image_bench([](const ImageBench& bench) {
    const Shape sample{1, 3, 2, 4};
    const std::int64_t floats = 2 * sample.elements();
    const Operand x = bench.drawn(sample.with_batch(kImages), 1);
    const Operand parts = bench.filled({kImages, floats});
    for (std::int64_t image = 0; image < kImages; ++image) {
      bench.on->sums().sum_over_batch(x.tensor().sample_range(image, 1),
                                      parts.floats() + image * floats);
    }
    const auto sum_of = [&](const std::vector<std::int64_t>& counts) {
      std::vector<StatSlot> slots;
      std::int64_t first = 0;
      for (const std::int64_t count : counts) {
        slots.push_back({count, parts.floats() + first * floats, count});
        first += count;
      }
      const Operand y = bench.zeros(sample.with_batch(2));
      bench.on->sums().broadcast_sum(slots, y.tensor(), false);
      return y.get();
    };
    const Values apart = sum_of({1, 1, 1, 1, 1});
    CHECK(apart != bench.zeros(sample.with_batch(2)).get());
    CHECK(sum_of({5}) == apart);
    CHECK(sum_of({2, 3}) == apart);
  });
}

TEST_CASE("an update adds the parts in the order of its joins, and squares block by block") {
  for (NamedBackend& named : backends_by_image()) {
    CAPTURE(named.name);
    const ImageBench bench{*named.backend};
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
    const Operand weights = bench.filled(flat), others = bench.filled(flat);
    const std::array<float*, 2> weight_of{weights.floats(), others.floats()};
    const Operand velocity = bench.filled(flat);
    const Numbers<double> squares(*named.backend, {0.0, 0.0, 0.0});
    OptimizerShard shard{.grads = grads,
                         .joins = joins,
                         .weights = weight_of,
                         .state = {velocity.floats()},
                         .ranges = ranges,
                         .lr = 1.0F,
                         .optimizer = Sgd{.momentum = 0},
                         .block_squares = squares.data()};
    bench.on->optimizer().optimizer_update(shard);
    const Values sum = tree(values);
    CHECK(velocity.get() == sum);
    CHECK(others.get() == weights.get());
    const auto square_of = [&](std::size_t begin, std::size_t end) {
      double expected = 0;
      for (std::size_t i = begin; i < std::min<std::size_t>(end, kElements); ++i) {
        expected += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
      }
      return doctest::Approx(expected).epsilon(1e-12);
    };
    for (std::size_t block = 0; block < 3; ++block) {
      CHECK(squares.get()[block] == square_of(block * kNormBlock, (block + 1) * kNormBlock));
    }
    // What lies in no range does not count.
    const Numbers<double> few(*named.backend, {0.0, 0.0, 0.0});
    const ParameterRange range{3, kNormBlock + 1};
    shard.ranges = {&range, 1};
    shard.block_squares = few.data();
    bench.on->optimizer().optimizer_update(shard);
    CHECK(few.get()[0] == square_of(3, kNormBlock));
    CHECK(few.get()[1] == square_of(kNormBlock, kNormBlock + 1));
    CHECK(few.get()[2] == 0);
    // Nothing is changed, and nothing added, when a loss is not finite.
    const Numbers<double> bad(*named.backend, {std::numeric_limits<double>::infinity()});
    const double* const loss = bad.data();
    const Values before = weights.get();
    shard.losses = {&loss, 1};
    bench.on->optimizer().optimizer_update(shard);
    CHECK(few.get()[0] == square_of(3, kNormBlock));
    CHECK(weights.get() == before);
    shard.losses = {};
    for (const std::array<int, 5>& wrong :
         {std::array{0, 1, 0, 2, 0}, {1, 0, 0, 2, 1}, {0, 2, 0, 1, 1}, {0, -1, 2, 2, 1}}) {
      shard.joins = wrong;
      CHECK_THROWS_WITH_AS(bench.on->optimizer().optimizer_update(shard),
                           doctest::Contains("the order of the sum does not fit the 5 gradients"),
                           Error);
    }
  }
}

TEST_CASE("a GPU that was not asked to keep sums image by image says so") {
  for (NamedBackend& named : available_backends()) {
    if (named.backend->sums_by_image()) continue;
    CAPTURE(named.name);
    const ImageBench bench{*named.backend};
    const Operand x = bench.drawn(kImagesShape, 1);
    const Operand moments = bench.filled({kImages, 2 * kImageChannels});
    CHECK_THROWS_WITH_AS(
        bench.on->norms().batch_norm_moments(x.tensor(), moments.floats(), kImages),
        doctest::Contains("BackendOptions::sums_by_image = true"), Error);
  }
}

}  // namespace lockstep::test
