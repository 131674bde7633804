// Every implementation of a convolution on the CPU: the same to the bit for any number of threads
// and for any cut of the batch, since the clock chooses between them by one image on one thread.

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "backend/conv/autotuner.h"
#include "backend/cpu/conv/cache.h"
#include "backend/cpu/conv/choice.h"
#include "backend/cpu/conv/dnnl.h"
#include "backend/cpu/simd.h"
#include "backend/operand.h"
#include "core/image_tree.h"
#include "support/storage_type.h"
#include "support/temporary_folder.h"
#include "support/with_variable.h"

namespace lockstep::test {
namespace {

struct EngineCase {
  const char* name;
  ConvGeometry geometry;
  std::int64_t height, width;
};

const std::vector<EngineCase>& engine_cases() {
  static const std::vector<EngineCase> all{
      {"the U-Net's first layer", same_padding_conv(3, 16, 3, 1), 33, 47},
      {"its second", same_padding_conv(16, 16, 3, 1), 44, 60},
      {"after a concatenation", same_padding_conv(48, 32, 3, 1), 22, 30},
      {"a deep layer", same_padding_conv(128, 160, 3, 1), 11, 15},
      {"so deep that its weights are multiplied in blocks", same_padding_conv(480, 496, 3, 1), 3,
       4},
      {"the head", same_padding_conv(16, 11, 1, 1), 33, 47},
      {"a stem", same_padding_conv(3, 64, 7, 2), 31, 32},
      // On some processors with AVX-512 oneDNN's order of sums depends on the threads here.
      {"a stem of few pixels", same_padding_conv(3, 32, 7, 2), 7, 7},
      {"a bottleneck", same_padding_conv(64, 256, 1, 1), 14, 14},
      {"stride 2", same_padding_conv(64, 64, 3, 2), 17, 18},
      {"dilation 2", same_padding_conv(32, 32, 3, 1, 2), 16, 17},
      {"dilation 4", same_padding_conv(48, 32, 3, 1, 4), 9, 18},
      {"a strided shortcut", same_padding_conv(64, 144, 1, 2), 13, 14},
      {"groups of eight channels", same_padding_conv(64, 64, 3, 1, 1, 8), 14, 13},
      {"groups of four, stride 2", same_padding_conv(80, 80, 3, 2, 1, 20), 35, 18},
      {"groups of sixteen channels", same_padding_conv(64, 64, 3, 1, 1, 4), 14, 13},
  };
  return all;
}

const ConvEngine& onednn() { return *find_conv_engine("onednn"); }

/// The name of the choice.
std::string chosen(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                   DType dtype = DType::kFloat32) {
  return choose_conv_engine(geometry, input, pass, dtype).name;
}

struct EngineResults {
  Values y, grad_x, grad_weight;
};

struct EngineProblem {
  ConvGeometry geometry;
  Shape in, out;
  Values x, weight, grad_y;

  EngineProblem(const EngineCase& c, std::int64_t images)
      : geometry(c.geometry),
        in{images, c.height, c.width, c.geometry.in_channels},
        out(c.geometry.output_shape(in)),
        x(random_values(in, 1)),
        weight(random_values(c.geometry.weight_shape(), 2, 0.2F)),
        grad_y(random_values(out, 3)) {}
};

/// The passes over images [first, first + count) of the problem that the engine can compute; no
/// values of the others.
EngineResults compute(const ConvEngine& engine, const EngineProblem& p, int threads,
                      std::int64_t first, std::int64_t count) {
  const auto backend = make_backend(Device{}, threads);
  const TypedBackend on(*backend, engine.tensors);
  omp_set_num_threads(threads);  // as ConvCache does: oneDNN asks for it
  const auto convolution = engine.make(p.geometry, p.in.with_batch(count), threads);
  const Operand x(on, p.in, p.x), grad_y(on, p.out, p.grad_y);
  const Operand y(on, p.out.with_batch(count)), grad_x(on, p.in.with_batch(count));
  const Operand grad_weight(*backend, p.geometry.weight_shape(), Values(p.weight.size(), 0.0F));
  const Tensor part_x = x.tensor().sample_range(first, count);
  const Tensor part_grad_y = grad_y.tensor().sample_range(first, count);
  const auto run = [&](ConvPass pass, const Operand& result, const auto& body) {
    if (!engine.can_compute(p.geometry, pass)) return Values();
    convolution->prepare(pass);
    const Storage scratch = backend->allocate(convolution->scratch_bytes(pass, false));
    body(scratch.data());
    return result.get();
  };
  return {run(ConvPass::kForward, y,
              [&](void* scratch) {
                convolution->forward(part_x, p.weight.data(), nullptr, y.tensor(), scratch);
              }),
          run(ConvPass::kBackwardData, grad_x,
              [&](void* scratch) {
                convolution->backward_data(part_grad_y, p.weight.data(), grad_x.tensor(), scratch);
              }),
          run(ConvPass::kBackwardWeights, grad_weight, [&](void* scratch) {
            convolution->backward_weights(part_x, part_grad_y, grad_weight.floats(), scratch);
          })};
}

template <typename Check>
void for_each_engine_and_case(const Check& check) {
  for (const ConvEngine& engine : conv_engines()) {
    for (const EngineCase& c : engine_cases()) {
      if (!engine.can_compute(c.geometry, ConvPass::kBackwardWeights)) continue;
      CAPTURE(std::string(engine.name));
      CAPTURE(std::string(c.name));
      check(engine, c);
    }
  }
}

TEST_CASE("no bit of a convolution depends on the number of threads") {
  for_each_engine_and_case([](const ConvEngine& engine, const EngineCase& c) {
    // Fewer images than threads, and more.
    for (const std::int64_t images : {1, 8}) {
      CAPTURE(images);
      const EngineProblem p(c, images);
      const EngineResults expected = compute(engine, p, 1, 0, images);
      for (const int threads : {3, 5}) {
        CAPTURE(threads);
        const EngineResults results = compute(engine, p, threads, 0, images);
        CHECK(results.y == expected.y);
        CHECK(results.grad_x == expected.grad_x);
        CHECK(results.grad_weight == expected.grad_weight);
      }
    }
  });
}

Values sum(const Values& a, const Values& b) {
  Values values = a;
  for (std::size_t i = 0; i < a.size(); ++i) values[i] += b[i];
  return values;
}

/// S[begin, begin + width) by its definition; empty where there are no images.
Values tree_sum(const std::vector<Values>& images, std::size_t begin, std::size_t width) {
  if (begin >= images.size()) return {};
  if (width == 1) return images[begin];
  const Values lower = tree_sum(images, begin, width / 2);
  const Values upper = tree_sum(images, begin + width / 2, width / 2);
  return upper.empty() ? lower : sum(lower, upper);
}

TEST_CASE(
    "n images give the bits of n times one image, whose weights' gradients add up in a tree") {
  for_each_engine_and_case([](const ConvEngine& engine, const EngineCase& c) {
    constexpr std::int64_t kImages = 7;
    const EngineProblem p(c, kImages);
    const EngineResults whole = compute(engine, p, 2, 0, kImages);
    EngineResults joined;
    std::vector<Values> gradients;
    for (std::int64_t i = 0; i < kImages; ++i) {
      const EngineResults one = compute(engine, p, 1, i, 1);
      joined.y.insert(joined.y.end(), one.y.begin(), one.y.end());
      joined.grad_x.insert(joined.grad_x.end(), one.grad_x.begin(), one.grad_x.end());
      gradients.push_back(one.grad_weight);
    }
    joined.grad_weight = tree_sum(gradients, 0, 8);
    CHECK(whole.y == joined.y);
    CHECK(whole.grad_x == joined.grad_x);
    CHECK(whole.grad_weight == joined.grad_weight);
  });
}

TEST_CASE("the tree over images has the order of its definition for any number of images") {
  constexpr std::int64_t kCount = 5, kStride = 7;
  for (std::int64_t images = 1; images <= 33; ++images) {
    CAPTURE(images);
    std::vector<Values> values;
    for (std::int64_t i = 0; i < images; ++i) {
      values.push_back(random_values({1, kCount}, static_cast<std::uint32_t>(i)));
    }
    Values nodes(static_cast<std::size_t>(image_tree_nodes(images) * kStride), -1.0F);
    for (std::int64_t i = 0; i < images; ++i) {
      add_image(i, values[static_cast<std::size_t>(i)].data(), kCount, nodes.data(), kStride);
    }
    const float* total = finish_image_tree(images, kCount, nodes.data(), kStride);
    CHECK(Values(total, total + kCount) == tree_sum(values, 0, 64));
    for (std::int64_t i = kCount; i < kStride; ++i) {
      CHECK(nodes[static_cast<std::size_t>(i)] == -1.0F);  // beyond the count
    }
  }
}

/// The largest relative error of the passes that the engine can compute, against oneDNN's, without
/// the rounding of results to the engine's tensors.
double disagreement(const ConvEngine& engine, const EngineProblem& p) {
  const EngineResults expected = compute(onednn(), p, 1, 0, 2);
  const EngineResults results = compute(engine, p, 1, 0, 2);
  double error = relative_error(results.grad_weight, widen(expected.grad_weight));
  if (!results.y.empty()) {
    error = std::max(error, relative_error(results.y, widen(expected.y), engine.tensors));
  }
  if (!results.grad_x.empty()) {
    error = std::max(error, relative_error(results.grad_x, widen(expected.grad_x), engine.tensors));
  }
  return error;
}

TEST_CASE("the implementations agree as far as their rounding allows") {
  for_each_engine_and_case([](const ConvEngine& engine, const EngineCase& c) {
    if (&engine == &onednn()) return;
    EngineProblem p(c, 2);
    if (engine.tensors == DType::kBFloat16) {
      const double rounded = disagreement(engine, p);
      CHECK(rounded > 1e-4);
      CHECK(rounded < 0x1p-7);
      // Where nothing is to be rounded they are as exact as the others.
      for (Values* values : {&p.x, &p.weight, &p.grad_y})
        *values = stored_values(DType::kBFloat16, *values);
    }
    CHECK(disagreement(engine, p) < 2e-5);
  });
}

TEST_CASE("convolutions of bf16 tensors round weights to the nearest number, ties to even") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<float, float>> known{{1.0F, 1.0F},
                                                   {1.0F + 0x1p-8F, 1.0F},
                                                   {1.0F + 0x1.8p-7F, 1.0F + 0x1p-6F},
                                                   {1.0F + 0x1.1p-8F, 1.0F + 0x1p-7F},
                                                   {-3.0F - 0x1p-7F, -3.0F},
                                                   {0x1.fffffep127F, kInfinity},
                                                   {-kInfinity, -kInfinity},
                                                   {kNotANumber, kNotANumber},
                                                   {0.0F, 0.0F}};
  Values weights;
  for (const auto& [value, rounded] : known) weights.push_back(value);
  const auto count = static_cast<std::int64_t>(known.size());
  const auto check = [&](const Values& rounded) {
    for (std::size_t i = 0; i < known.size(); ++i) {
      CAPTURE(known[i].first);
      if (std::isnan(known[i].second)) {
        CHECK(std::isnan(rounded[i]));
      } else {
        CHECK(rounded[i] == known[i].second);
      }
    }
  };
  for (const ConvEngine& engine : conv_engines()) {
    if (engine.tensors != DType::kBFloat16) continue;
    // They lie next to one another, from one channel to many, and a row apart, from many to one.
    for (const ConvGeometry& g :
         {same_padding_conv(1, count, 1, 1), same_padding_conv(count, 1, 1, 1)}) {
      if (!engine.can_compute(g, ConvPass::kForward)) continue;
      CAPTURE(std::string(engine.name));
      const auto backend = make_backend(Device{}, 1);
      const TypedBackend on(*backend, engine.tensors);
      const auto convolution = engine.make(g, {1, 1, 1, g.in_channels}, 1);
      const ConvPass pass = g.in_channels == 1 ? ConvPass::kForward : ConvPass::kBackwardData;
      const Operand one(on, Shape{1, 1, 1, 1}, Values{1.0F}), all(on, Shape{1, 1, 1, count});
      convolution->prepare(pass);
      const Storage scratch = backend->allocate(convolution->scratch_bytes(pass, false));
      if (pass == ConvPass::kForward) {
        convolution->forward(one.tensor(), weights.data(), nullptr, all.tensor(), scratch.data());
      } else {
        convolution->backward_data(one.tensor(), weights.data(), all.tensor(), scratch.data());
      }
      check(all.get());
    }
  }
}

/// A convolution and the BatchNorm behind it in inference, on operands of a channel range or dense.
struct InferenceProblem {
  const EngineProblem& convolution;
  Margins margins;
  bool residual, relu;

  Values compute(Backend& backend, DType dtype, bool at_once) const {
    const EngineProblem& p = convolution;
    const TypedBackend on(backend, dtype);
    const Shape channels{1, p.out.channels()};
    const Operand x(on, p.in, p.x, margins), y(on, p.out, margins);
    const Operand between(on, p.out), added(on, p.out, p.grad_y, margins);
    const Values weight = random_values(channels, 5), bias = random_values(channels, 6);
    const Values mean = random_values(channels, 7);
    Values var = random_values(channels, 8);
    for (float& value : var) value = value * value;
    const BatchNormInference norm{.x = at_once ? Tensor{} : between.tensor(),
                                  .residual = residual ? added.tensor() : Tensor{},
                                  .y = y.tensor(),
                                  .affine = {weight.data(), bias.data()},
                                  .mean = mean.data(),
                                  .var = var.data(),
                                  .relu = relu};
    backend.convolutions().prepare_conv2d(p.geometry, p.in, dtype, false, false);
    if (at_once) {
      backend.convolutions().conv2d_inference(p.geometry, x.tensor(), p.weight.data(), bias.data(),
                                              norm);
    } else {
      backend.convolutions().conv2d_forward(p.geometry, x.tensor(), p.weight.data(), bias.data(),
                                            norm.x);
      backend.norms().batch_norm_inference(norm);
    }
    CHECK(y.margins_untouched());
    return y.get();
  }
};

TEST_CASE("a convolution that normalises gives the bits of one and a BatchNorm behind it") {
  for_each_engine_and_case([](const ConvEngine& engine, const EngineCase& c) {
    const WithVariable forced("LOCKSTEP_CONVOLUTION", std::string(engine.name));
    const EngineProblem p(c, 2);
    const auto one = make_backend(Device{}, 1), three = make_backend(Device{}, 3);
    for (const int bits : {0, 1, 2, 3, 4, 7}) {
      CAPTURE(bits);
      const InferenceProblem problem{p, (bits & 4) != 0 ? Margins{3, 5} : Margins{},
                                     (bits & 1) != 0, (bits & 2) != 0};
      const Values expected = problem.compute(*one, engine.tensors, false);
      CHECK(problem.compute(*one, engine.tensors, true) == expected);
      CHECK(problem.compute(*three, engine.tensors, true) == expected);
    }
  });
}

TEST_CASE("the user's implementation is taken wherever it can compute") {
  const ConvGeometry undilated = same_padding_conv(16, 16, 3, 1),
                     strided = same_padding_conv(16, 16, 3, 2);
  const Shape image{1, 12, 14, 16};
  {
    const WithVariable forced("LOCKSTEP_CONVOLUTION", "onednn");
    CHECK(chosen(undilated, image, ConvPass::kForward) == "onednn");
  }
  const WithVariable forced("LOCKSTEP_CONVOLUTION", "winograd8");
  CHECK(chosen(undilated, image, ConvPass::kForward) == "winograd8");
  CHECK(chosen(strided, image, ConvPass::kForward) == "onednn");
  {
    const WithVariable list("LOCKSTEP_CONVOLUTION", "matmul8,winograd8");
    CHECK(chosen(undilated, image, ConvPass::kForward) == "matmul8");
    CHECK(chosen(same_padding_conv(16, 16, 1, 1), image, ConvPass::kForward) == "matmul8");
    CHECK(chosen(strided, image, ConvPass::kForward) == "matmul8");
    CHECK(chosen(same_padding_conv(16, 16, 5, 1), image, ConvPass::kForward) == "onednn");
  }
  const WithVariable unknown("LOCKSTEP_CONVOLUTION", "winograd8,fft");
  CHECK_THROWS_AS(chosen(undilated, image, ConvPass::kForward), ConfigError);
}

TEST_CASE("in exact fp32 Winograd's tiles of 4x4 are no candidates, and choices are others'") {
  const ConvGeometry g = same_padding_conv(32, 32, 3, 1);
  const Shape image{1, 12, 14, 32};
  const auto all = conv_candidates(g, image, ConvPass::kForward);
  auto fewer = all;
  CHECK(std::erase_if(fewer, [](const ConvEngine* engine) {
          return std::string(engine->name).ends_with("_4x4");
        }) == 1);
  CHECK(conv_candidates(g, image, ConvPass::kForward, DType::kFloat32, true) == fewer);
  CHECK(conv_candidates(g, image, ConvPass::kForward, DType::kBFloat16, true) ==
        conv_candidates(g, image, ConvPass::kForward, DType::kBFloat16));
  const TemporaryFolder folder;
  const WithVariable place("LOCKSTEP_AUTOTUNE", (folder.path() / "autotune.json").string());
  chosen(g, image, ConvPass::kForward);
  choose_conv_engine(g, image, ConvPass::kForward, DType::kFloat32, true);
  const auto& choices = Autotuner::of(folder.path() / "autotune.json").choices();
  REQUIRE(choices.size() == 2);
  CHECK(choices.back().problem == choices.front().problem + ", exact");
  CHECK(choices.back().chosen.find("4x4") == std::string::npos);
  // A backend asks for what its options say.
  const Shape one{1, 12, 14, 32};
  const Values x = random_values(one, 1), weight = random_values(g.weight_shape(), 2);
  const WithVariable rule("LOCKSTEP_AUTOTUNE", "");
  const auto computed = [&](bool tf32) {
    const auto backend = make_backend(Device{}, 1, {.tf32 = tf32});
    const Operand from(*backend, one, x), to(*backend, one);
    backend->convolutions().conv2d_forward(g, from.tensor(), weight.data(), nullptr, to.tensor());
    return to.get();
  };
  const Values exact = computed(false), fast = computed(true);
  CHECK(exact != fast);
  CHECK(relative_error(fast, widen(exact)) < 1e-5);
}

TEST_CASE("images of other sizes to evaluate are computed without a clock, and kept in no file") {
  const TemporaryFolder folder;
  const WithVariable place("LOCKSTEP_AUTOTUNE", (folder.path() / "autotune.json").string());
  const Autotuner& tuner = Autotuner::of(folder.path() / "autotune.json");
  const auto backend = make_backend(Device{}, 1);
  const auto prepare = [&](std::int64_t side, bool training) {
    backend->convolutions().prepare_conv2d(same_padding_conv(16, 16, 3, 1), {2, side, side, 16},
                                           DType::kFloat32, training, false);
  };
  for (const std::int64_t side : {31, 32, 33}) prepare(side, side == 32);
  CHECK(tuner.choices().size() == 4);
  CHECK(tuner.kept(conv_machine()).size() == 2);  // both passes of the trained size
  prepare(33, true);
  CHECK(tuner.choices().size() == 5);
  CHECK(tuner.kept(conv_machine()).size() == 4);
}

TEST_CASE("of convolutions of thousands of sizes a training's are kept, and others made anew") {
  const WithVariable rule("LOCKSTEP_AUTOTUNE", "");
  const ConvGeometry g = same_padding_conv(8, 8, 1, 1);
  const Values weight = random_values(g.weight_shape(), 2);
  const auto backend = make_backend(Device{}, 1);
  ConvCache cache(false);
  const auto convolution = [&](const Shape& shape, bool training) -> Convolution& {
    const ConvPass pass = ConvPass::kForward;
    return cache.get(g, shape, pass, cache.engine(g, shape, pass, DType::kFloat32, training), 1,
                     training);
  };
  const auto compute = [&](const Shape& shape) {
    const Operand x(*backend, shape, random_values(shape, 1)), y(*backend, shape);
    Convolution& made = convolution(shape, false);
    Values scratch(made.scratch_bytes(ConvPass::kForward, false) / sizeof(float) + 1);
    made.forward(x.tensor(), weight.data(), nullptr, y.tensor(), scratch.data(), nullptr);
    return y.get();
  };
  const Shape trained{1, 2, 3, 8}, evaluated{1, 3, 2, 8};
  const Convolution* kept = &convolution(trained, true);
  const Values first = compute(trained), second = compute(evaluated);
  std::size_t most = 0;
  for (std::int64_t size = 0; size < 1500; ++size) {
    convolution({1, 4 + size / 40, 1 + size % 40, 8}, false);
    most = std::max(most, cache.size());
  }
  CHECK(most < 1100);
  CHECK(cache.size() > 400);  // the last ones
  CHECK(&convolution(trained, false) == kept);
  CHECK(compute(trained) == first);
  CHECK(compute(evaluated) == second);
}

TEST_CASE("implementations of bf16 tensors are candidates for those alone") {
  const Shape image{1, 12, 14, 32};
  const bool gains = dnnl_gains_by_bf16();
  for (const std::int64_t kernel : {1, 3}) {
    const ConvGeometry g = same_padding_conv(32, 32, kernel, 1);
    for (const ConvPass pass :
         {ConvPass::kForward, ConvPass::kBackwardData, ConvPass::kBackwardWeights}) {
      for (const ConvEngine* engine : conv_candidates(g, image, pass)) {
        CHECK(engine->tensors == DType::kFloat32);
      }
      std::vector<std::string> expected;
      if (kernel == 3) {
        expected.push_back("winograd" + std::to_string(simd::native_lanes()) + "_4x4_bf16");
      }
      if (gains && (kernel == 1 || pass == ConvPass::kBackwardWeights)) {
        expected.emplace_back("onednn_matmul_bf16");
      }
      if (gains) expected.emplace_back("onednn_bf16");
      for (const ConvEngine* engine : conv_candidates(g, image, pass)) {
        if (engine->copies) expected.emplace_back(engine->name);
      }
      std::vector<std::string> names;
      for (const ConvEngine* engine : conv_candidates(g, image, pass, DType::kBFloat16)) {
        names.emplace_back(engine->name);
      }
      CHECK(names == expected);
      if (kernel == 1) continue;
      const WithVariable forced("LOCKSTEP_CONVOLUTION", "winograd8_4x4_bf16");
      CHECK(chosen(g, image, pass, DType::kBFloat16) == "winograd8_4x4_bf16");
      CHECK_THROWS_WITH_AS(chosen(g, image, pass), doctest::Contains("run.precision"), ConfigError);
    }
  }
}

TEST_CASE("without a file a rule decides, with one the clock, once for any batch") {
  const ConvGeometry g = same_padding_conv(16, 32, 3, 1);
  const Shape images{4, 10, 18, 16};
  {
    const WithVariable no_file("LOCKSTEP_AUTOTUNE", "");
    const std::string winograd = "winograd" + std::to_string(simd::native_lanes()) + "_4x4";
    CHECK(chosen(g, images, ConvPass::kForward) == winograd);
    CHECK(chosen(same_padding_conv(3, 16, 3, 1), {1, 10, 18, 3}, ConvPass::kForward) == "onednn");
    const ConvGeometry dilated = same_padding_conv(16, 32, 3, 1, 4);
    CHECK(chosen(dilated, {1, 16, 16, 16}, ConvPass::kForward) == winograd);
    // Sub-grids of one or two pixels: too small for Winograd, and most of what is read is padding.
    CHECK(chosen(dilated, {1, 5, 6, 16}, ConvPass::kForward) == "onednn");
    CHECK(conv_candidates(dilated, {1, 5, 6, 16}, ConvPass::kForward).size() == 2);
  }
  const TemporaryFolder folder;
  const auto file = folder.path() / "autotune.json";
  const WithVariable place("LOCKSTEP_AUTOTUNE", file.string());
  Autotuner& tuner = Autotuner::of(file);
  for (const ConvPass pass :
       {ConvPass::kForward, ConvPass::kBackwardData, ConvPass::kBackwardWeights}) {
    const std::string first = chosen(g, images, pass);
    CHECK(chosen(g, images.with_batch(1), pass) == first);
    REQUIRE(!tuner.choices().empty());
    CHECK(tuner.choices().back().origin == ChoiceOrigin::kMeasured);
    CHECK(tuner.choices().back().chosen == first);
    CHECK(tuner.choices().back().problem.find(to_string(pass)) != std::string::npos);
  }
  CHECK(tuner.choices().size() == 3);
  CHECK(tuner.kept(conv_machine()).size() == 3);
  chosen(g, {1, 10, 19, 16}, ConvPass::kForward);
  CHECK(tuner.choices().size() == 4);  // another width is another problem
}

}  // namespace
}  // namespace lockstep::test
