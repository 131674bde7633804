// Images, masks and bad files made by other programs, with the values that must come out.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/image_io.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kCases = "../shared/images";

bool skipped() {
  if (std::filesystem::is_regular_file(kCases / "expected.json")) return false;
  std::puts("SKIPPED: images of any kind: ../shared/images is not there");
  return true;
}

Json cases(const char* kind) {
  return Json::parse(std::ifstream(kCases / "expected.json")).at(kind);
}

std::string first_file(const Json& about) {
  const Json& file = about.at("file");
  return (file.is_array() ? file.front() : file).get<std::string>();
}

ImageRule rule_of(const Json& about) {
  const Json& config = about.at("config");
  return {.channels = config.value("channels", 3),
          .bands = config.value("bands", std::vector<int>()),
          .channel_files = config.value("channel_files", std::vector<std::string>())};
}

std::vector<float> floats_of(const Image& image) {
  return with_values(
      image, [](const auto& values) { return std::vector<float>(values.begin(), values.end()); });
}

/// How many values differ; two that are not there do not.
std::size_t different(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; count == 0 && i < a.size(); ++i)
    count += !(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])));
  return count;
}

double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i] - b[i]));
  return sum / static_cast<double>(a.size());
}

/// What reading complains of; empty: it does not.
std::string complaint_of(const Json& about, const std::string& file) {
  try {
    Image image;
    LabelMap labels;
    if (about.at("config").value("mask", false)) {
      const MaskKind kind = read_mask(kCases / file, labels, image);
      return kind == MaskKind::kColors ? "data.palette: " + file : "";
    }
    read_image(kCases / file, image, rule_of(about));
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST_CASE("images of every kind have the values that other programs wrote") {
  if (skipped()) return;
  const Json all = cases("images");
  for (const auto& [name, about] : all.items()) {
    CAPTURE(name);
    Image image, expected;
    const auto path = kCases / first_file(about);
    REQUIRE_NOTHROW(read_image(path, image, rule_of(about)));
    const Json& shape = about.at("shape");
    const int channels = shape[2].get<int>();
    read_image(kCases / about.at("array").get<std::string>(), expected, {.channels = channels});
    CHECK(image.height == shape[0]);
    CHECK(image.width == shape[1]);
    CHECK(image.channels == channels);
    CHECK(read_image_size(path, rule_of(about)) == Size{image.height, image.width});
    if (about.contains("mean_absolute_difference")) {
      CHECK(mean_difference(floats_of(image), expected.floats) <
            about.at("mean_absolute_difference").get<double>());
    } else {
      CHECK(different(floats_of(image), expected.floats) == 0);
    }
  }
}

TEST_CASE("masks of every kind have their values") {
  if (skipped()) return;
  const Json all = cases("masks");
  for (const auto& [name, about] : all.items()) {
    CAPTURE(name);
    LabelMap labels, expected;
    Image colored;
    const auto path = kCases / first_file(about);
    CHECK(read_mask(path, labels, colored) == MaskKind::kValues);
    read_mask(kCases / about.at("array").get<std::string>(), expected, colored);
    CHECK(labels.height == about.at("shape")[0]);
    CHECK(labels.pixels == expected.pixels);
  }
}

TEST_CASE("files that are no images say so") {
  if (skipped()) return;
  // Of these the loaders complain, that see more than one file or what an image is for.
  const std::array<std::string, 2> whole_sets{"all_nan", "mixed_types"};
  const Json all = cases("bad");
  for (const auto& [name, about] : all.items()) {
    CAPTURE(name);
    if (std::find(whole_sets.begin(), whole_sets.end(), name) != whole_sets.end()) continue;
    const std::string complaint = complaint_of(about, first_file(about));
    REQUIRE(complaint != "");
    for (const Json& words : about.at("says"))
      CHECK(complaint.find(words.get<std::string>()) != complaint.npos);
  }
}

}  // namespace
}  // namespace lockstep
