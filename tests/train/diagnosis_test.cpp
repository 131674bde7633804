// What a diagnosis says of known slots, of networks, and what it decides.

#include "train/diagnosis/diagnosis.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"
#include "train/runs.h"

namespace lockstep {
namespace {

/// Images of two values each, in one channel: mean +- spread.
PartMoments image(float mean, float spread) {
  return {.count = 2, .mean = {mean}, .m2 = {2 * spread * spread}};
}

}  // namespace

TEST_CASE("weights that are not finite are refused") {
  const test::Runs runs;
  train(runs.request("a"));
  SafetensorsFile weights = read_weights(runs.folder("a").checkpoint("last"));
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(weights.tensors.at("encoder.0.1.bn.running_var").data.data(), &infinity, 4);
  const std::filesystem::path broken = runs.path() / "broken.safetensors";
  save_safetensors(broken, weights.tensors);
  const doctest::Contains says("1 of 4 values of encoder.0.1.bn.running_var are not finite");
  const Config config = runs.request("b").config;
  CHECK_THROWS_WITH_AS(diagnose({.config = config, .weights = broken, .device = "cpu:1"}), says,
                       DataError);
  const TrainRequest request =
      runs.request("b", {"model.backbone_weights=\"" + broken.string() + "\""});
  CHECK_THROWS_WITH_AS(diagnose({.config = request.config, .device = "cpu:1"}), says, DataError);
}

TEST_CASE("neighbours are put together as if their values were one image's") {
  // 1, 3 | 5, 9 | 0, 0: the first four have mean 4.5 and deviations 3.5, 1.5, 0.5, 4.5.
  const std::vector<PartMoments> images{image(2, 1), image(7, 2), image(0, 0)};
  const auto pairs = merge_neighbours(images, 2);
  REQUIRE(pairs.size() == 1);  // the third has no neighbour
  CHECK(pairs[0].count == 4);
  CHECK(pairs[0].mean[0] == 4.5F);
  CHECK(pairs[0].m2[0] == 3.5F * 3.5F + 1.5F * 1.5F + 0.5F * 0.5F + 4.5F * 4.5F);
  CHECK(merge_neighbours(images, 1).size() == 3);
  CHECK_THROWS_WITH_AS(merge_neighbours(images, 0), doctest::Contains("at least one part"), Error);
}

TEST_CASE("what statistics of one and of two images miss of four, by hand") {
  // Means 0, 2, 0, 2 of unbiased variance 4/3, variances 1, together 7/3.
  const std::vector<PartMoments> images{image(0, 1), image(2, 1), image(0, 1), image(2, 1)};
  const LayerNoise one = noise_of(images, 1, 0);
  CHECK(one.values == 2);
  CHECK(one.ratio == doctest::Approx(4.0 / 3));
  CHECK(one.missed == doctest::Approx(4.0 / 7));
  CHECK(one.mean_shift == doctest::Approx(std::sqrt(4.0 / 7)));
  CHECK(one.log_var_ratio == doctest::Approx(std::log(2.0)));
  // Two at random have means of variance 2/3 and see the rest. These neighbours are as all four.
  const LayerNoise two = noise_of(images, 2, 0);
  CHECK(two.values == 4);
  CHECK(two.ratio == doctest::Approx(2.0 / 5));
  CHECK(two.missed == doctest::Approx(2.0 / 7));
  CHECK(two.log_var_ratio == doctest::Approx(0));
}

TEST_CASE("channels count alike, one without variance for nothing") {
  const auto two_channels = [](float mean) {
    return PartMoments{.count = 2, .mean = {mean, 5}, .m2 = {2, 0}};
  };
  const std::vector<PartMoments> images{two_channels(0), two_channels(2)};
  // b = 2, w = 1 in the first channel.
  CHECK(noise_of(images, 1, 1e-9).missed == doctest::Approx(2.0 / 3 / 2));
  CHECK(noise_of(images, 1, 1e-9).ratio == doctest::Approx(2.0 / 2));
}

namespace {

ImagesDiagnosis judged(std::int64_t together, double missed, std::int64_t global_batch,
                       double running_loss = 1, WeightsOrigin origin = WeightsOrigin::kInitial,
                       double bimodality = 0.5, double factor = 2.2) {
  ImagesDiagnosis images{.together = together,
                         .layers = {{.layer = "a",
                                     .values = 900,
                                     .missed = missed / 2,
                                     .log_var_ratio = std::log(factor) - 0.1},
                                    {.layer = "b",
                                     .values = 400,
                                     .missed = missed,
                                     .log_var_ratio = std::log(factor) + 0.1,
                                     .bimodality = bimodality}},
                         .loss = 1,
                         .running_loss = running_loss};
  if (origin == WeightsOrigin::kTrained) images.stored_loss = running_loss;
  judge(images, global_batch, origin);
  return images;
}

}  // namespace

TEST_CASE("the rule: where images differ much they are normalised one by one, however many") {
  CHECK(judged(1, 0.49, 8).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(1, 0.5, 8).verdict == SyncVerdict::kByImage);
  CHECK(judged(2, 0.25, 8).verdict == SyncVerdict::kByImage);
  CHECK(judged(2, 0.24, 8).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(8, 0.9 / 8, 8).verdict == SyncVerdict::kByImage);
  CHECK(judged(1, 0.5, 8).reason.starts_with("50 % of the variance at b lies between images: "));
  const ImagesDiagnosis kinds = judged(1, 0.5, 8, 1, WeightsOrigin::kInitial, 0.7);
  CHECK(kinds.reason.find("between images, which fall into kinds: ") != std::string::npos);
  // Pretrained weights are those of another norm.
  CHECK(judged(1, 0.5, 8, 1, WeightsOrigin::kPretrained).verdict == SyncVerdict::kSynchronize);
  // All variance of a layer of one value per image lies between images, whatever they are.
  ImagesDiagnosis pooled = judged(2, 0.06, 8);
  pooled.layers.push_back({.layer = "pool", .values = 2, .missed = 0.5});
  judge(pooled, 8);
  CHECK(pooled.verdict == SyncVerdict::kCannotTell);
  // Trained ones say it themselves.
  const ImagesDiagnosis trained = judged(1, 0.1, 8, 1.6, WeightsOrigin::kTrained);
  CHECK(trained.verdict == SyncVerdict::kByImage);
  CHECK(trained.reason.find("loss 1.00 by each image's own statistics and 1.60 by their") !=
        std::string::npos);
  CHECK(judged(1, 0.1, 8, 1.5, WeightsOrigin::kTrained).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(2, 0.1, 8, 1.6, WeightsOrigin::kTrained).verdict == SyncVerdict::kSynchronize);
}

TEST_CASE("the rule: one image alone, by how far images' variances are apart") {
  const auto alone = [](double factor, WeightsOrigin origin = WeightsOrigin::kInitial) {
    return judged(1, 0.1, 8, 1, origin, 0.5, factor);
  };
  CHECK(alone(1.99).verdict == SyncVerdict::kSynchronize);
  CHECK(alone(2.01).verdict == SyncVerdict::kCannotTell);
  CHECK(alone(2.49).verdict == SyncVerdict::kCannotTell);
  CHECK(alone(2.51).verdict == SyncVerdict::kByImage);
  CHECK(alone(3).reason.starts_with("an image's variance is off that of all by a factor of 3.0"));
  CHECK(alone(1.2).reason.find("10.0 % of the variance at b, which") != std::string::npos);
  CHECK(alone(3, WeightsOrigin::kPretrained).verdict == SyncVerdict::kSynchronize);
  CHECK(judged(2, 0.1, 8, 1, WeightsOrigin::kInitial, 0.5, 3).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(1, 0.03, 8, 1, WeightsOrigin::kInitial, 0.5, 3).verdict == SyncVerdict::kNotNeeded);
  // A layer with one value per image has no variance of an image.
  ImagesDiagnosis pooled = alone(3);
  pooled.layers.push_back({.layer = "pool", .values = 1, .missed = 0.1});
  judge(pooled, 8);
  CHECK(pooled.verdict == SyncVerdict::kByImage);
}

TEST_CASE("bimodality: of two heaps 1, of equal steps that of a uniform distribution") {
  std::vector<PartMoments> heaps, steps;
  for (int i = 0; i < 200; ++i) {
    heaps.push_back(image(i % 2 == 0 ? 0.0F : 1.0F, 1));
    steps.push_back(image(static_cast<float>(i), 1));
  }
  CHECK(noise_of(heaps, 1, 0).bimodality == doctest::Approx(1).epsilon(0.02));
  CHECK(noise_of(steps, 1, 0).bimodality == doctest::Approx(5.0 / 9).epsilon(0.02));
  CHECK(noise_of(heaps, 4, 0).bimodality == noise_of(heaps, 1, 0).bimodality);
  CHECK(noise_of(std::vector<PartMoments>(heaps.begin(), heaps.begin() + 3), 1, 0).bimodality == 0);
  CHECK(noise_of(std::vector<PartMoments>(9, image(1, 1)), 1, 0).bimodality == 0);
}

TEST_CASE("the rule: missed variance first, then whether an image is alone") {
  CHECK(judged(1, 0.063, 8).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(1, 0.063, 8).reason.ends_with("synchronize or normalise by image; compare both"));
  CHECK(judged(1, 0.063, 8, 1, WeightsOrigin::kPretrained).verdict == SyncVerdict::kSynchronize);
  CHECK(judged(1, 0.063, 8).reason.find("misses 6.3 % of the variance at b") != std::string::npos);
  CHECK(judged(2, 0.063, 8).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(2, 0.063, 0).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(1, 0.032, 8).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(1, 0.031, 8).verdict == SyncVerdict::kNotNeeded);
  CHECK(judged(1, 0.031, 8).reason.starts_with("it misses 3.1 %"));
  CHECK(judged(2, 0.031, 8).reason.starts_with("they miss 3.1 %"));
  CHECK(judged(2, 0.062, 8).verdict == SyncVerdict::kNotNeeded);
  CHECK(judged(8, 0.03, 8).verdict == SyncVerdict::kNotNeeded);
  CHECK(judged(2, 0.07, 2).verdict == SyncVerdict::kNotNeeded);
  // Weights that the running statistics of such training do not fit.
  CHECK(judged(2, 0.063, 8, 1.5).verdict == SyncVerdict::kCannotTell);
  CHECK(judged(2, 0.063, 8, 1.6).verdict == SyncVerdict::kSynchronize);
  CHECK(judged(2, 0.063, 8, 1.6).reason.find("loss 1.60 in evaluation, 1.00 in training") !=
        std::string::npos);
  CHECK(judged(2, 0.062, 8, 1.6).verdict == SyncVerdict::kNotNeeded);
  ImagesDiagnosis none{
      .together = 1, .layers = {{.layer = "pool", .values = 1}}, .impossible = true};
  judge(none, 8);
  CHECK(none.verdict == SyncVerdict::kSynchronize);
  CHECK(none.reason.find("pool has one value") != std::string::npos);
}

TEST_CASE("statistics that training settles at: means of means and of unbiased variances") {
  const std::vector<PartMoments> images{image(0, 1), image(3, 2)};
  const BatchNormStatistics settled = settled_statistics(images);
  CHECK(settled.mean[0] == 1.5F);
  CHECK(settled.var[0] == (2.0F + 8.0F) / 2);  // m2 over one degree of freedom
}

TEST_CASE("a diagnosis: all images at a time are no noise, one is more than four") {
  const test::Runs runs;
  DiagnosisRequest request{.config = runs.request("a").config, .device = "cpu:1"};
  request.images_per_device = {1, 4};
  request.images = 12;
  const Diagnosis diagnosis = diagnose(request);
  CHECK(diagnosis.images == 12);
  CHECK(diagnosis.global_batch == 6);
  CHECK(diagnosis.shares_statistics());
  REQUIRE(diagnosis.by_images.size() == 2);
  const ImagesDiagnosis &one = diagnosis.by_images[0], &four = diagnosis.by_images[1];
  REQUIRE(one.layers.size() == 6);
  CHECK(one.layers[0].layer == "encoder.0.0.bn");
  CHECK(one.layers[0].values == 32 * 32);
  CHECK(four.layers[0].values == 4 * 32 * 32);
  CHECK(one.layers[0].mean_shift > four.layers[0].mean_shift);
  CHECK(one.logit_noise > four.logit_noise);
  CHECK(four.logit_noise > 0);
  CHECK(one.logit_disparity > four.logit_disparity);
  // Running statistics that have settled are nearly those of all images.
  CHECK(four.logit_disparity < 1.5 * four.logit_noise);
}

TEST_CASE("a diagnosis does not depend on threads, nor on what the training asks of its devices") {
  const test::Runs runs;
  const auto diagnosis_of = [&](std::vector<std::string> overrides) {
    DiagnosisRequest request{.config = runs.request("a", std::move(overrides)).config};
    request.device = "cpu:1";
    request.images_per_device = {2};
    request.images = 6;
    return diagnose(request).by_images[0];
  };
  const ImagesDiagnosis local = diagnosis_of({});
  const ImagesDiagnosis sync =
      diagnosis_of({"bn.mode=sync", "bn.sync_group=2", "batch.accumulate=2", "data.workers=0"});
  CHECK(local.logit_disparity == sync.logit_disparity);
  CHECK(local.running_loss == sync.running_loss);
  CHECK(local.layers[3].ratio == sync.layers[3].ratio);
}

TEST_CASE("the layers that differ most come first, each once") {
  Diagnosis diagnosis;
  CHECK(layers_apart(diagnosis, 3).empty());
  diagnosis.by_images.resize(1);
  diagnosis.by_images[0].layers = {{.layer = "a", .ratio = 1},
                                   {.layer = "b", .ratio = 3},
                                   {.layer = "b", .ratio = 2},
                                   {.layer = "c", .ratio = 1}};
  CHECK(layers_apart(diagnosis, 2) == std::vector<std::string>{"b", "a"});
  CHECK(layers_apart(diagnosis, 9) == std::vector<std::string>{"b", "a", "c"});
}

TEST_CASE("nothing is shared where images are normalised one by one, or by loaded statistics") {
  const test::Runs runs;
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {"bn.mode=layer"},
           {"bn.mode=instance"},
           {"bn.mode=frozen"},
           {"bn.mode=instance", "model.arch=fcn_resnet50", "model.resnet_width=2"}}) {
    CAPTURE(keys.back());
    DiagnosisRequest request{.config = runs.request("a", keys).config, .device = "cpu:1"};
    request.images_per_device = {1};
    CHECK_FALSE(diagnose(request).shares_statistics());
  }
}

TEST_CASE("numbers that nobody asked for are left out where there are too few images for them") {
  const test::Runs runs;
  const auto numbers_of = [&](std::int64_t images, std::vector<std::string> overrides = {}) {
    DiagnosisRequest request{.config = runs.request("a", std::move(overrides)).config,
                             .device = "cpu:1"};
    request.images = images;
    const Diagnosis diagnosis = diagnose(request);
    std::vector<std::int64_t> numbers;
    for (const ImagesDiagnosis& of : diagnosis.by_images) numbers.push_back(of.together);
    return std::pair(numbers, diagnosis.left_out);
  };
  using Numbers = std::vector<std::int64_t>;
  CHECK(numbers_of(0) == std::pair(Numbers{1, 2, 4}, Numbers{8}));  // of 14 training images
  CHECK(numbers_of(3) == std::pair(Numbers{1}, Numbers{2, 4, 8}));
  CHECK(numbers_of(0, {"data.train_images=16"}) == std::pair(Numbers{1, 2, 4, 8}, Numbers{}));
  CHECK_THROWS_WITH_AS(numbers_of(0, {"data.train_images=1", "batch.global=1"}),
                       doctest::Contains("2 images, and there are 1"), ConfigError);
}

TEST_CASE("too few images for a number per device are an error that says how many it takes") {
  const test::Runs runs;
  DiagnosisRequest request{.config = runs.request("a").config, .device = "cpu:1"};
  request.images_per_device = {8};  // of 14 training images
  CHECK_THROWS_WITH_AS(diagnose(request), doctest::Contains("16 images, and there are 14"),
                       ConfigError);
}

}  // namespace lockstep
