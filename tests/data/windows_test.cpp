#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/json.h"
#include "data/window_merge.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

const std::filesystem::path kCases = "../shared/images";

/// The values of an array of float32, whatever its shape.
std::vector<float> read_array(const std::string& name) {
  std::ifstream file(kCases / name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(bytes.size() > 10);
  REQUIRE(bytes.find("'<f4'") != std::string::npos);
  const std::size_t header = 10 + static_cast<unsigned char>(bytes[8]) +
                             256 * static_cast<std::size_t>(static_cast<unsigned char>(bytes[9]));
  std::vector<float> values((bytes.size() - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + header, values.size() * sizeof(float));
  return values;
}

Json arithmetic() {
  std::ifstream file(kCases / "expected.json");
  return Json::parse(file).at("arithmetic");
}

bool cases_are_there() {
  if (std::filesystem::exists(kCases / "expected.json")) return true;
  std::puts("SKIPPED: windows: ../shared/images is not there");
  return false;
}

void softmax(std::span<const float> logits, float* probabilities) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float total = 0;
  for (std::size_t c = 0; c < logits.size(); ++c) {
    probabilities[c] = std::exp(logits[c] - largest);
    total += probabilities[c];
  }
  for (std::size_t c = 0; c < logits.size(); ++c) probabilities[c] /= total;
}

struct Merged {
  std::vector<float> probabilities;
  TileMismatch mismatch;
};

/// `logits`: [window, height, width, classes].
Merged merge(const std::vector<float>& logits, const WindowGrid& grid, Blend blend) {
  constexpr std::size_t kClasses = 3;
  Merged merged;
  int next = 0;
  WindowMerge merge(
      grid, kClasses, blend, true, [&](int first, int count, std::span<const float> rows) {
        CHECK(first == next);
        next += count;
        merged.probabilities.insert(merged.probabilities.end(), rows.begin(), rows.end());
      });
  const auto windows = static_cast<std::size_t>(grid.rows() * grid.columns());
  const std::size_t each = logits.size() / windows;
  std::vector<float> probabilities(each);
  for (std::size_t window = 0; window < windows; ++window) {
    for (std::size_t i = 0; i < each; i += kClasses) {
      softmax(std::span(logits).subspan(window * each + i, kClasses), probabilities.data() + i);
    }
    merge.add(probabilities, grid.window().width);
  }
  CHECK(next == grid.image().height);
  merged.mismatch = merge.mismatch();
  return merged;
}

void check_close(const std::vector<float>& values, const std::vector<float>& expected,
                 double tolerance) {
  REQUIRE(values.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(values[i] - expected[i])));
  }
  CHECK(worst <= tolerance);
}

}  // namespace

TEST_CASE("windows begin where the rule says") {
  if (!cases_are_there()) return;
  const Json all = arithmetic();
  for (const Json& one : all.at("window_starts")) {
    CAPTURE(one.dump());
    const WindowAxis axis =
        window_axis(one.at("image"), one.at("window"), one.at("overlap"), one.at("divisor"));
    CHECK(axis.window == one.at("size").get<int>());
    CHECK(axis.starts == one.at("starts").get<std::vector<int>>());
  }
}

TEST_CASE("windows are spread evenly, halves rounded up, and a pixel is the nearest one's") {
  const WindowAxis axis = window_axis(1000, 256, 0.5, 8);
  CHECK(axis.starts == std::vector<int>{0, 128, 248, 376, 496, 624, 744});
  CHECK(window_axis(95, 32, 0.9, 16).starts == std::vector<int>{0, 16, 32, 48, 64});
  const WindowAxis two{4, {0, 3}};  // middles 1.5 and 4.5: pixel 3 is as near to both
  CHECK(two.owners(7) == std::vector<int>{0, 0, 0, 0, 1, 1, 1});
  const std::vector<float> weights = gaussian_weights({8, 8});
  CHECK(weights[0] == doctest::Approx(0.001));
  CHECK(weights[3 * 8 + 3] == doctest::Approx(0.778800783));
  CHECK(weights[3 * 8 + 1] == doctest::Approx(0.038774208));
}

TEST_CASE("windows reach the image's end, are whole units and overlap as asked") {
  for (int extent = 1; extent < 90; ++extent) {
    for (const double overlap : {0.0, 0.25, 0.5, 0.9}) {
      const WindowAxis axis = window_axis(extent, 32, overlap, 4);
      const int filled = (extent + 3) / 4 * 4;
      REQUIRE(axis.starts.front() == 0);
      REQUIRE(axis.starts.back() + axis.window == filled);
      for (std::size_t k = 1; k < axis.starts.size(); ++k) {
        REQUIRE(axis.starts[k] % 4 == 0);
        REQUIRE(axis.starts[k] > axis.starts[k - 1]);
        REQUIRE(axis.starts[k - 1] + axis.window - axis.starts[k] >=
                static_cast<int>(overlap * axis.window) / 4 * 4);
      }
    }
  }
  CHECK_THROWS_AS(window_axis(100, 8, 0.5, 16), ConfigError);
  CHECK_THROWS_AS(window_axis(100, 64, 1.0, 16), ConfigError);
}

TEST_CASE("windows count the less the farther their middle is") {
  if (!cases_are_there()) return;
  const Json all = arithmetic();
  for (const Json& one : all.at("gaussian_weights")) {
    std::vector<float> expected;
    for (const Json& row : one.at("weights")) {
      for (const Json& value : row) expected.push_back(value);
    }
    check_close(gaussian_weights({one.at("height"), one.at("width")}), expected, 1e-6);
  }
}

TEST_CASE("windows come to the map of the reference") {
  if (!cases_are_there()) return;
  const Json one = arithmetic().at("merge");
  const WindowGrid grid({44, 60}, {.window = {32, 24}, .overlap = 0.5, .divisor = 4});
  CHECK(grid.row_axis().starts == one.at("rows").get<std::vector<int>>());
  CHECK(grid.column_axis().starts == one.at("columns").get<std::vector<int>>());
  CHECK(grid.row_axis().owners(44) == one.at("crop").at("row_owners").get<std::vector<int>>());
  CHECK(grid.column_axis().owners(60) ==
        one.at("crop").at("column_owners").get<std::vector<int>>());
  const std::vector<float> logits = read_array(one.at("logits"));
  for (const char* blend : {"flat", "gaussian", "crop"}) {
    CAPTURE(blend);
    const Blend by = std::string(blend) == "flat"   ? Blend::kFlat
                     : std::string(blend) == "crop" ? Blend::kCrop
                                                    : Blend::kGaussian;
    const Merged merged = merge(logits, grid, by);
    check_close(merged.probabilities, read_array(one.at(blend).at("array")), 1e-5);
    const Json& mismatch = one.at("tile_mismatch");
    CHECK(merged.mismatch.pixels == mismatch.at("pixel_pairs").get<std::int64_t>());
    CHECK(merged.mismatch.other_class == mismatch.at("different_classes").get<std::int64_t>());
    CHECK(merged.mismatch.mean_difference() ==
          doctest::Approx(mismatch.at("mean_half_l1").get<double>()).epsilon(1e-5));
  }
  const std::vector<float> equal = read_array(one.at("equal_logits"));
  for (const Blend blend : {Blend::kFlat, Blend::kGaussian, Blend::kCrop}) {
    const Merged merged = merge(equal, grid, blend);
    check_close(merged.probabilities, read_array(one.at("equal_flat").at("array")), 1e-5);
    CHECK(merged.mismatch.other_class == 0);
    CHECK(merged.mismatch.mean_difference() < 1e-6);
  }
}

TEST_CASE("of an image in one window nothing is changed") {
  const WindowGrid grid({3, 5}, {.window = {64, 64}, .divisor = 8});
  std::vector<float> values;  // of the window, 8 x 8, of two classes
  for (int i = 0; i < 128; ++i) values.push_back(static_cast<float>(i) / 7);
  for (const Blend blend : {Blend::kFlat, Blend::kCrop, Blend::kGaussian}) {
    std::vector<float> rows;
    WindowMerge merge(grid, 2, blend, true, [&](int, int, std::span<const float> from) {
      rows.assign(from.begin(), from.end());
    });
    merge.add(values, 8);
    REQUIRE(rows.size() == 30);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i] == doctest::Approx(values[i / 10 * 16 + i % 10]));
    }
    CHECK(merge.mismatch().pixels == 0);
  }
}

}  // namespace lockstep
