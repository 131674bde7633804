// Trained networks at work: views of images, what becomes of their logits, devices that share the
// work.

#include "train/inference/inference.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <numeric>
#include <set>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "nn/argmax.h"
#include "train/inference/image_files.h"
#include "train/inference/pixel_merge.h"
#include "train/inference/views.h"
#include "train/runs.h"

namespace lockstep {
namespace {

using Floats = std::vector<float>;

Image random_image(int height, int width, std::uint64_t seed) {
  Rng rng(seed, RngPurpose::kSynthetic, 1, 2);
  Image image{height, width, {}};
  for (int i = 0; i < height * width * 3; ++i) {
    image.pixels.push_back(static_cast<std::uint8_t>(rng.uniform(0, 256)));
  }
  return image;
}

Floats random_floats(std::size_t count, std::uint64_t seed) {
  Rng rng(seed, RngPurpose::kSynthetic, 3, 4);
  Floats values(count);
  for (float& value : values) value = rng.uniform(-3, 3);
  return values;
}

Image mirrored(const Image& image) {
  Image result = image;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      for (int c = 0; c < 3; ++c) {
        result.pixels[static_cast<std::size_t>((y * image.width + x) * 3 + c)] =
            image.pixels[static_cast<std::size_t>((y * image.width + image.width - 1 - x) * 3 + c)];
      }
    }
  }
  return result;
}

/// Classes 0..255 by their red value alone: (red / 255 - 0) / 1.
DataOptions plain_data() {
  DataOptions data;
  data.num_classes = 3;
  data.mean = {0, 0, 0};
  data.std = {1, 1, 1};
  return data;
}

/// Logit of class c at (y, x) of the interpolated map, in double.
double interpolated(const LogitMap& map, Size size, int y, int x, std::int64_t c) {
  const auto position = [](int i, int from, int to) {
    return std::max(0.0, (i + 0.5) * from / to - 0.5);
  };
  const double v = position(y, map.valid.height, size.height);
  const double u = position(x, map.valid.width, size.width);
  const auto at = [&](double row, double column) {
    const int r = std::min(static_cast<int>(row), map.valid.height - 1);
    const int s = std::min(static_cast<int>(column), map.valid.width - 1);
    return static_cast<double>(map.values[(r * map.stored.width + s) * map.classes + c]);
  };
  const double dv = v - std::floor(v), du = u - std::floor(u);
  return (1 - dv) * ((1 - du) * at(v, u) + du * at(v, u + 1)) +
         dv * ((1 - du) * at(v + 1, u) + du * at(v + 1, u + 1));
}

}  // namespace

TEST_CASE("views: an image padded with the mean colour, scaled, and mirrored beside itself") {
  const Image image = random_image(5, 7, 1);
  const Views views(plain_data(), 4, augmentation_of(true, "1,2"));
  const std::vector<View> made = views.of(image);
  REQUIRE(made.size() == 2);
  CHECK(made[0].size == Size{5, 7});
  CHECK(made[0].shape == Shape{2, 8, 8, 3});
  CHECK(made[1].size == Size{10, 14});
  CHECK(made[1].shape == Shape{2, 12, 16, 3});
  const Image mirror = mirrored(image);
  const auto value = [&](int sample, int y, int x, int c) {
    return made[0].images[static_cast<std::size_t>(((sample * 8 + y) * 8 + x) * 3 + c)];
  };
  for (int y = 0; y < 8; ++y) {
    for (int x = 0; x < 8; ++x) {
      const bool inside = y < 5 && x < 7;
      const auto at = static_cast<std::size_t>((y * 7 + x) * 3 + 1);
      CHECK(value(0, y, x, 1) == (inside ? static_cast<float>(image.pixels[at]) / 255 : 0));
      CHECK(value(1, y, x, 1) == (inside ? static_cast<float>(mirror.pixels[at]) / 255 : 0));
    }
  }
}

TEST_CASE("views: scales are read, and what is none is an error") {
  const TestTimeAugmentation both = augmentation_of(true, "0.5,1,1.75");
  CHECK(both.scales == std::vector<double>{0.5, 1, 1.75});
  CHECK(to_string(both) == "flip, scales 0.5, 1, 1.75");
  CHECK(to_string(augmentation_of(true, "")) == "flip");
  CHECK(to_string(augmentation_of(false, "2")) == "scales 2");
  CHECK_FALSE(augmentation_of(false, "").active());
  CHECK_FALSE(augmentation_of(false, "1.0").active());
  CHECK(augmentation_of(false, "2").active());
  for (const char* wrong : {"0", "-1", "x", "1,", ",1", "1;2", "17", "0.5,nan", "1,1", "1,2,1.0"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(augmentation_of(false, wrong), ConfigError);
  }
}

TEST_CASE(
    "merged logits: classes and probabilities are those of interpolated logits, mirrored back") {
  const Size stored{6, 8}, valid{5, 7};
  constexpr std::int64_t kClasses = 4;
  const Floats logits = random_floats(6 * 8 * kClasses, 5);
  for (const Size size : {Size{5, 7}, {9, 15}, {3, 2}, {1, 1}}) {
    CAPTURE(size.height);
    for (const bool mirrored : {false, true}) {
      CAPTURE(mirrored);
      const LogitMap map{logits.data(), stored, valid, kClasses, mirrored};
      Floats sums(static_cast<std::size_t>(size.height * size.width * kClasses), 1);
      add_probabilities(map, size, sums);
      const std::vector<Label> classes = pixel_classes(map, size);
      for (int y = 0; y < size.height; ++y) {
        for (int x = 0; x < size.width; ++x) {
          double total = 0;
          int best = 0;
          for (int c = 0; c < kClasses; ++c) {
            total += std::exp(interpolated(map, size, y, x, c));
            if (interpolated(map, size, y, x, c) > interpolated(map, size, y, x, best)) best = c;
          }
          CHECK(classes[static_cast<std::size_t>(y * size.width + x)] == best);
          const int place = mirrored ? size.width - 1 - x : x;
          for (int c = 0; c < kClasses; ++c) {
            const auto at = static_cast<std::size_t>((y * size.width + place) * kClasses + c);
            CHECK(
                sums[at] - 1 ==
                doctest::Approx(std::exp(interpolated(map, size, y, x, c)) / total).epsilon(1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "merged logits: probabilities of large logits are finite, and equal classes keep their order") {
  Floats probabilities(3);
  softmax(Floats{1000, 999, -1000}, probabilities.data());
  CHECK(probabilities[0] == doctest::Approx(1 / (1 + std::exp(-1.0))));
  CHECK(probabilities[2] == 0);
  CHECK(largest(Floats{1, 2, 2, 3, 0, 3}, 3) == std::vector<Label>{1, 0});
  const std::vector<ClassScore> top = likeliest(Floats{0.1F, 0.2F, 0.1F, 0.3F, 0.1F, 0.2F});
  std::vector<Label> labels;
  for (const ClassScore& score : top) labels.push_back(score.label);
  CHECK(labels == std::vector<Label>{3, 1, 5, 0, 2});
  CHECK(likeliest(Floats{0.25F, 0.75F}).size() == 2);
}

namespace {

/// A trained network, and an image that its divisor does not divide.
struct Trained {
  test::Runs runs;
  TrainedModel model;
  Image image = random_image(21, 27, 9);
  Size size{21, 27};

  Trained() {
    train(runs.request("a", {"run.max_iters=2", "model.depth=3"}));
    TrainedModelRequest request;
    request.target = runs.folder("a").root;
    model = read_trained_model(request);
  }
  ImagePrediction predict(const TestTimeAugmentation& augmentation, const Image& shown) const {
    Inference inference(model, parse_devices("cpu:1"), {.augmentation = augmentation});
    return inference.predict(0, shown, size, true);
  }
};

}  // namespace

TEST_CASE("inference: mirrored images have mirrored predictions, to the bit, with flips") {
  const Trained trained;
  const TestTimeAugmentation flip{.flip = true};
  const ImagePrediction one = trained.predict(flip, trained.image);
  const ImagePrediction other = trained.predict(flip, mirrored(trained.image));
  constexpr int kClasses = 11;
  REQUIRE(one.probabilities.size() == 21 * 27 * kClasses);
  int differ = 0;
  for (int y = 0; y < 21; ++y) {
    for (int x = 0; x < 27; ++x) {
      const auto here = static_cast<std::size_t>(y * 27 + x);
      const auto there = static_cast<std::size_t>(y * 27 + 26 - x);
      differ += one.classes.pixels[here] != other.classes.pixels[there] ? 1 : 0;
      for (std::size_t c = 0; c < kClasses; ++c) {
        differ +=
            one.probabilities[here * kClasses + c] != other.probabilities[there * kClasses + c] ? 1
                                                                                                : 0;
      }
    }
  }
  CHECK(differ == 0);
  const ImagePrediction plain = trained.predict({}, mirrored(trained.image));
  CHECK(plain.probabilities != other.probabilities);  // else this test could not fail
}

TEST_CASE("inference: probabilities sum to 1, are means over the views, and say the classes") {
  const Trained trained;
  const ImagePrediction plain = trained.predict({}, trained.image);
  CHECK(plain.classes.pixels == largest(plain.probabilities, 11));
  Floats sum;
  for (const char* scales : {"0.5", "1", "1.5"}) {
    const Floats one = trained.predict(augmentation_of(false, scales), trained.image).probabilities;
    sum.resize(one.size());
    for (std::size_t i = 0; i < one.size(); ++i) sum[i] += one[i];
  }
  const Floats all =
      trained.predict(augmentation_of(false, "0.5,1,1.5"), trained.image).probabilities;
  REQUIRE(all.size() == sum.size());
  double distance = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    distance = std::max(distance, std::abs(static_cast<double>(all[i] - sum[i] / 3)));
  }
  CHECK(distance < 1e-6);
  for (std::size_t i = 0; i < all.size(); i += 11) {
    CHECK(std::accumulate(all.begin() + i, all.begin() + i + 11, 0.0) == doctest::Approx(1));
  }
}

TEST_CASE(
    "inference: every index is worked on once, by all devices, and the first failure is thrown") {
  const Trained trained;
  Inference inference(trained.model, parse_devices("cpu:3"), {});
  std::vector<std::atomic<int>> times(40);
  std::atomic<int> wrong_device = 0;
  inference.for_each(40, [&](std::int64_t i, int device) {
    ++times[static_cast<std::size_t>(i)];
    wrong_device += device < 0 || device > 2 ? 1 : 0;
  });
  for (const auto& count : times) CHECK(count == 1);
  CHECK(wrong_device == 0);
  CHECK_THROWS_WITH_AS(inference.for_each(1000,
                                          [](std::int64_t i, int) {
                                            if (i == 7) throw DataError("the seventh");
                                          }),
                       "the seventh", DataError);
  const std::atomic<bool> stop = true;
  std::atomic<int> calls = 0;
  inference.for_each(
      5, [&](std::int64_t, int) { ++calls; }, &stop);
  CHECK(calls == 0);
}

namespace {

double largest_distance(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double distance = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    distance = std::max(distance, static_cast<double>(std::abs(a[i] - b[i])));
  }
  return distance;
}

}  // namespace

TEST_CASE("inference: windows of running statistics give the map of one piece, on any devices") {
  const Trained trained;
  const Image image = random_image(101, 131, 12);
  const Size size{101, 131};
  const WindowOptions windows{.window = {80, 88}, .overlap = 0.75, .divisor = 4};
  const auto predict = [&](const char* devices, const InferenceOptions& options) {
    Inference inference(trained.model, parse_devices(devices), options);
    return inference.predict(0, image, size, true);
  };
  const ImagePrediction whole = predict("cpu:1", {});
  const ImagePrediction cut = predict("cpu:1", {.windows = windows, .compares_windows = true});
  CHECK(largest_distance(whole.probabilities, cut.probabilities) < 1e-5);
  CHECK(cut.classes.pixels == largest(cut.probabilities, 11));
  CHECK(cut.mismatch.pixels > 0);
  const ImagePrediction three = predict("cpu:3", {.windows = windows});
  CHECK(three.probabilities == cut.probabilities);
  CHECK(three.mismatch.pixels == 0);

  WindowOptions near = windows;  // less than the network looks around a pixel
  near.overlap = 0.1;
  CHECK(largest_distance(whole.probabilities, predict("cpu:1", {.windows = near}).probabilities) >
        1e-4);
  const ImagePrediction small =
      predict("cpu:1", {.windows = windows, .least_pixels = 101 * 131 + 1});
  CHECK(small.probabilities == whole.probabilities);
}

TEST_CASE("inference: rows come from the top, each once, with their part of the image") {
  const Trained trained;
  const Image image = random_image(101, 131, 12);
  const WindowOptions windows{.window = {48, 40}, .overlap = 0.5, .divisor = 4};
  Inference inference(trained.model, parse_devices("cpu:2"), {.windows = windows});
  const ImagePrediction whole = inference.predict(0, image, {101, 131}, true);
  const auto source = rows_of(image);
  std::vector<Label> classes;
  Floats probabilities;
  std::vector<std::uint8_t> pixels;
  int calls = 0, most = 0;
  const bool done = inference.predict_rows(1, {.rows = *source}, [&](const PredictedRows& rows) {
    ++calls;
    most = std::max(most, rows.band.height);
    classes.insert(classes.end(), rows.classes.begin(), rows.classes.end());
    probabilities.insert(probabilities.end(), rows.probabilities.begin(), rows.probabilities.end());
    const auto begin = rows.band.pixels.begin() + rows.offset * 131 * 3;
    pixels.insert(pixels.end(), begin, begin + rows.count * 131 * 3);
  });
  CHECK(done);
  CHECK(calls > 2);
  CHECK(most == 48);
  CHECK(classes == whole.classes.pixels);
  CHECK(probabilities == whole.probabilities);
  CHECK(pixels == image.pixels);

  const std::atomic<bool> stop = true;
  CHECK_FALSE(inference.predict_rows(0, {.rows = *source, .stop = &stop},
                                     [](const PredictedRows&) { FAIL("a row was predicted"); }));
  const auto fail = [](const PredictedRows&) { throw Error("the disk is full"); };
  CHECK_THROWS_WITH_AS(inference.predict_rows(0, {.rows = *source}, fail), "the disk is full",
                       Error);
}

TEST_CASE("inference: of an image that was resized windows are, too") {
  const Trained trained;
  const Image image = random_image(64, 72, 5);
  Inference whole(trained.model, parse_devices("cpu:1"), {});
  Inference cut(trained.model, parse_devices("cpu:1"),
                {.windows = {.window = {64, 72}, .divisor = 4}});
  const ImagePrediction a = whole.predict(0, image, {50, 90}, true);
  const ImagePrediction b = cut.predict(0, image, {50, 90}, true);
  CHECK(b.classes.height == 50);
  CHECK(b.classes.width == 90);
  REQUIRE(a.probabilities.size() == b.probabilities.size());
  // Probabilities are interpolated in place of logits.
  std::size_t differ = 0;
  for (std::size_t i = 0; i < a.classes.pixels.size(); ++i) {
    differ += a.classes.pixels[i] != b.classes.pixels[i] ? 1 : 0;
  }
  CHECK(differ < a.classes.pixels.size() / 20);
}

TEST_CASE("inference: what the network throws reaches the caller, and the device goes on") {
  Trained trained;
  trained.model.architecture.size_divisor = 1;  // so that images are not padded
  Inference inference(trained.model, parse_devices("cpu:1"), {});
  CHECK_THROWS_AS(inference.predict(0, trained.image, trained.size, false), Error);
  const Image fits = random_image(20, 28, 3);
  CHECK(inference.predict(0, fits, {20, 28}, false).classes.pixels.size() == 20 * 28);
}

TEST_CASE("inference: what keeps images from being found is an error that names them") {
  const test::TemporaryFolder folder;
  const std::filesystem::path loop = folder.path() / "loop";
  std::filesystem::create_symlink("loop", loop);
  std::vector<std::string> left_out;
  CHECK_THROWS_WITH_AS(find_images(std::vector{loop}, {}, left_out),
                       doctest::Contains(loop.c_str()), DataError);
  CHECK_THROWS_WITH_AS(make_output_folder(loop), doctest::Contains(loop.c_str()), ConfigError);
  CHECK(prediction_files(std::vector<std::filesystem::path>{"a.png"}, loop, {}).size() == 1);
}

TEST_CASE("inference: files of a prediction never meet") {
  const std::vector<std::filesystem::path> apart{"a/x.jpg", "b/y.png"}, twice{"a/x.jpg", "b/x.png"},
      suffix{"a/x.jpg", "a/x_overlay.jpg"}, itself{"out/x.png"};
  const auto files = prediction_files(apart, "out", {true, true, true});
  CHECK(files[0].all() ==
        std::vector<std::filesystem::path>{"out/x.png", "out/x_overlay.png", "out/x.npy"});
  CHECK(prediction_files(apart, "out", {true, false, false})[1].all() ==
        std::vector<std::filesystem::path>{"out/y.png"});
  CHECK_THROWS_WITH_AS(prediction_files(twice, "out", {}),
                       doctest::Contains("a/x.jpg and b/x.png would both be written"), ConfigError);
  CHECK_THROWS_WITH_AS(prediction_files(suffix, "out", {}), doctest::Contains("x_overlay.png"),
                       ConfigError);
  CHECK_NOTHROW(prediction_files(suffix, "out", {true, false, false}));
  CHECK_THROWS_WITH_AS(prediction_files(itself, "out", {}), doctest::Contains("one of the images"),
                       ConfigError);
}

}  // namespace lockstep
