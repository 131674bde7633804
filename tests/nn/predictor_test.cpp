#include "lockstep/nn/predictor.h"

#include <algorithm>

#include "nn/harness.h"

namespace lockstep::test {
namespace {

Outputs tiny(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1});
  x = norm(net, x, "bn", {.relu = true});
  return {{"aux", net.conv2d(x, "aux", {.out_channels = 2, .bias = true})},
          {"out", net.conv2d(x, "head", {.out_channels = 4, .bias = true})}};
}

/// A network of `tiny`, as it was trained, with running statistics away from their first values.
struct Trained : DeclaredModel {
  explicit Trained(const Shape& shape, const NormLayer& norm = SyncBatchNorm())
      : DeclaredModel(tiny, shape, {.training = false}, norm) {
    initialize_parameters(store, *backend, 3);
    const BatchNormState& state = *store.batch_norms().front();
    upload(*backend, Tensor(state.running_mean, Shape{1, 6}), random_floats(6, 1));
    upload(*backend, Tensor(state.running_var, Shape{1, 6}), Floats{1, 2, 0.5F, 3, 1, 0.1F});
  }
  Floats logits(const Floats& images) {
    upload(*backend, network->input(), images);
    network->forward({.training = false});
    return download(*backend, network->output(network->output_index("out")));
  }
};

Floats channels_first(const Floats& images, const Shape& shape) {
  Floats moved(images.size());
  const std::int64_t rows = shape.rows_per_sample(), channels = shape.channels();
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    const std::int64_t n = i / (rows * channels), row = i / channels % rows, c = i % channels;
    moved[static_cast<std::size_t>((n * channels + c) * rows + row)] =
        images[static_cast<std::size_t>(i)];
  }
  return moved;
}

}  // namespace

TEST_CASE("a predictor says what the network says in evaluation, whatever the images' size") {
  Trained first({3, 8, 10, 3});
  Predictor predictor(tiny, state_dict(first.store, *first.backend));
  for (const Shape& shape : {Shape{3, 8, 10, 3}, {1, 8, 10, 3}, {2, 5, 4, 3}, {3, 8, 10, 3}}) {
    CAPTURE(to_string(shape));
    const Floats images = random_floats(shape.elements(), 7);
    Trained reference(shape);
    const Floats logits = reference.logits(images);
    const Prediction result = predictor.predict(images, shape);
    CHECK(result.shape == Shape{shape.batch(), shape.height(), shape.width(), 4});
    CHECK(Floats(result.logits.begin(), result.logits.end()) == logits);
    REQUIRE(result.classes.size() == logits.size() / 4);
    for (std::size_t row = 0; row < result.classes.size(); ++row) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(4 * row);
      CHECK(result.classes[row] == std::max_element(begin, begin + 4) - begin);
    }
    const Prediction same =
        predictor.predict(channels_first(images, shape), shape, ImageLayout::kChannelsFirst);
    CHECK(Floats(same.logits.begin(), same.logits.end()) == logits);
  }
}

TEST_CASE("a predictor without weights says which one it misses") {
  Predictor predictor(tiny, {});
  CHECK_THROWS_AS(predictor.predict(random_floats(8 * 8 * 3, 7), {1, 8, 8, 3}), DataError);
}

TEST_CASE("a predictor normalises by the eps that the network was trained with") {
  const NormLayer norm = SyncBatchNorm({.eps = 0.5F, .eps_mode = EpsMode::kClamp});
  Trained trained({2, 8, 8, 3}, norm);
  const TensorMap weights = state_dict(trained.store, *trained.backend);
  const Floats images = random_floats(2 * 8 * 8 * 3, 7);
  const Floats logits = trained.logits(images);
  const auto said = [&](const PredictorOptions& options) {
    Predictor predictor(tiny, weights, options);
    const Prediction result = predictor.predict(images, {2, 8, 8, 3});
    return Floats(result.logits.begin(), result.logits.end());
  };
  CHECK(said({.norm = norm}) == logits);
  CHECK(said({}) != logits);
}

TEST_CASE("a predictor refuses images and weights that do not fit") {
  Trained trained({1, 8, 8, 3});
  const TensorMap weights = state_dict(trained.store, *trained.backend);
  Predictor predictor(tiny, weights);
  CHECK_THROWS_WITH_AS(predictor.predict(Floats(10), {1, 8, 8, 3}),
                       doctest::Contains("expected 192 values"), Error);
  TensorMap less = weights;
  less.erase("head.bias");
  Predictor incomplete(tiny, less);
  CHECK_THROWS_WITH_AS(incomplete.predict(Floats(192), {1, 8, 8, 3}),
                       doctest::Contains("head.bias"), DataError);
  Predictor elsewhere(tiny, weights, {.output = "depth"});
  CHECK_THROWS_AS(elsewhere.predict(Floats(192), {1, 8, 8, 3}), Error);
}

TEST_CASE("a predictor that was shown wrong images first predicts right ones") {
  Trained trained({1, 8, 8, 3});
  Predictor predictor(tiny, state_dict(trained.store, *trained.backend));
  CHECK_THROWS_WITH_AS(predictor.predict(Floats(256), {1, 8, 8, 4}),
                       doctest::Contains("the model was declared for images of the shape "
                                         "[1, 8, 8, 4]"),
                       DataError);
  CHECK_THROWS_AS(predictor.predict({}, {0, 8, 8, 3}), Error);
  const Floats images = random_floats(192, 7);
  const Prediction result = predictor.predict(images, {1, 8, 8, 3});
  CHECK(Floats(result.logits.begin(), result.logits.end()) == trained.logits(images));
  CHECK_THROWS_AS(predictor.predict(Floats(256), {1, 8, 8, 4}), Error);
  const Prediction again = predictor.predict(images, {1, 8, 8, 3});
  CHECK(Floats(again.logits.begin(), again.logits.end()) == trained.logits(images));
  CHECK_THROWS_AS(Predictor(nullptr, {}), ConfigError);
}

// A layer in the middle sees one value per image and channel.
Outputs pooled(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1});
  x = norm(net, x, "bn", {.relu = true});
  Value* global = net.adaptive_avg_pool2d(x, 1, 1);
  global = norm(net, global, "pool.bn", {.relu = true});
  return {{"out", net.conv2d(net.concat({x, net.upsample_bilinear(global, x, false)}), "head",
                             {.out_channels = 4, .bias = true})}};
}

namespace {

/// Weights of a model with random gamma, beta and running statistics.
TensorMap random_weights(const Model& model, const Shape& shape) {
  DeclaredModel declared(model, shape, {.training = false}, SyncBatchNorm());
  initialize_parameters(declared.store, *declared.backend, 3);
  std::uint32_t seed = 11;
  for (const auto& parameter : declared.store.parameters()) {
    if (parameter->kind != ParameterKind::kNorm) continue;
    upload(*declared.backend, Tensor(parameter->value, Shape{1, parameter->elements}),
           random_floats(parameter->elements, ++seed));
  }
  for (const auto& state : declared.store.batch_norms()) {
    upload(*declared.backend, Tensor(state->running_mean, Shape{1, state->channels}),
           random_floats(state->channels, ++seed));
    upload(*declared.backend, Tensor(state->running_var, Shape{1, state->channels}),
           Floats(static_cast<std::size_t>(state->channels), 0.3F));
  }
  return state_dict(declared.store, *declared.backend);
}

/// What the model says, normalising as `norm`, with those of the weights that it has.
Floats said_by(const Model& model, const NormLayer& norm, const TensorMap& weights,
               const Floats& images, const Shape& shape) {
  DeclaredModel declared(model, shape, {.training = false}, norm);
  load_state_dict(weights, declared.store, *declared.backend, false);
  upload(*declared.backend, declared.network->input(), images);
  declared.network->forward({.training = false});
  return download(*declared.backend,
                  declared.network->output(declared.network->output_index("out")));
}

Floats predicted(const Model& model, const TensorMap& weights, const Floats& images,
                 const Shape& shape) {
  Predictor predictor(model, weights);
  const Prediction said = predictor.predict(images, shape);
  return {said.logits.begin(), said.logits.end()};
}

}  // namespace

TEST_CASE("by own statistics: the bits of an InstanceNorm with the same gamma and beta") {
  const TensorMap weights = random_weights(tiny, {3, 8, 10, 3});
  for (const Shape& shape : {Shape{3, 8, 10, 3}, {1, 8, 10, 3}, {2, 5, 4, 3}}) {
    CAPTURE(to_string(shape));
    const Floats images = random_floats(shape.elements(), 7);
    const Floats own = predicted(normalize_by_image(tiny), weights, images, shape);
    CHECK(own == said_by(tiny, InstanceNorm(), weights, images, shape));
    CHECK(own != predicted(tiny, weights, images, shape));
    // One by one as together: nobody else's image matters.
    const std::int64_t each = shape.elements() / shape.batch();
    const Floats first(images.begin(), images.begin() + each);
    const Floats alone = predicted(normalize_by_image(tiny), weights, first, shape.with_batch(1));
    CHECK(std::equal(alone.begin(), alone.end(), own.begin()));
  }
}

TEST_CASE("by own statistics: a layer of one value per image keeps its running statistics") {
  const Shape shape{2, 8, 10, 3};
  const TensorMap weights = random_weights(pooled, shape);
  const Floats images = random_floats(shape.elements(), 7);
  const auto mixed = [](NetworkBuilder& net, Value* x, const NormLayer& norm) {
    x = net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1});
    x = InstanceNorm()(net, x, "bn", {.relu = true});
    Value* global = net.adaptive_avg_pool2d(x, 1, 1);
    global = norm(net, global, "pool.bn", {.relu = true});
    return Outputs{{"out", net.conv2d(net.concat({x, net.upsample_bilinear(global, x, false)}),
                                      "head", {.out_channels = 4, .bias = true})}};
  };
  CHECK(predicted(normalize_by_image(pooled), weights, images, shape) ==
        said_by(mixed, SyncBatchNorm(), weights, images, shape));
}

TEST_CASE("by the batch's statistics: a layer of one value keeps its running statistics") {
  const Shape one{1, 8, 10, 3};
  const TensorMap weights = random_weights(pooled, one);
  const Floats images = random_floats(one.elements(), 7);
  const Floats by_batch =
      said_by(normalize_by_batch(pooled), SyncBatchNorm(), weights, images, one);
  const Floats own = predicted(normalize_by_image(pooled), weights, images, one);
  for (std::size_t i = 0; i < own.size(); ++i) CHECK(by_batch[i] == doctest::Approx(own[i]));
}

TEST_CASE("by own statistics: frozen layers and other norms stay what they are") {
  const Shape shape{2, 8, 10, 3};
  const TensorMap weights = random_weights(tiny, shape);
  const Floats images = random_floats(shape.elements(), 7);
  for (const NormLayer& norm : {NormLayer(FrozenBatchNorm()), NormLayer(GroupNorm(2))}) {
    CHECK(said_by(normalize_by_image(tiny), norm, weights, images, shape) ==
          said_by(tiny, norm, weights, images, shape));
  }
}

}  // namespace lockstep::test
