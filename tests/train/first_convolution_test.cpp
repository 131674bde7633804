#include "train/first_convolution.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace lockstep {
namespace {

TEST_CASE("weights of RGB are spread over other channels") {
  // Of two outputs and one tap: red, green, blue.
  const std::vector<float> rgb{1, 2, 3, 10, 20, 60};
  HostTensor weight{"F32", {2, 3, 1, 1}, {}};
  weight.data.resize(rgb.size() * sizeof(float));
  std::memcpy(weight.data.data(), rgb.data(), weight.data.size());
  const HostTensor square{"F32", {1, 4, 1, 1}, std::vector<std::byte>(16)};
  TensorMap weights{{"conv1.weight", weight}, {"conv2.weight", square}};
  CHECK(spread_first_convolution(3, {}, weights).empty());
  CHECK(weights.at("conv1.weight") == weight);
  const std::vector<std::string> said = spread_first_convolution(2, {}, weights);
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("conv1.weight: 3 channels in the file, 2 here") == 0);
  const HostTensor& spread = weights.at("conv1.weight");
  CHECK(spread.shape == std::vector<std::int64_t>{2, 2, 1, 1});
  std::vector<float> values(4);
  std::memcpy(values.data(), spread.data.data(), spread.data.size());
  CHECK(values == std::vector<float>{3, 3, 45, 45});
  CHECK(weights.at("conv2.weight") == square);
}

TEST_CASE("inner convolutions of three channels stay as they are") {
  const HostTensor rgb{"F32", {1, 3, 1, 1}, std::vector<std::byte>(12)};
  const HostTensor gray{"F32", {1, 1, 1, 1}, std::vector<std::byte>(4)};
  TensorMap weights{{"first.weight", rgb}, {"inner.weight", rgb}};
  const TensorMap network{{"first.weight", gray}, {"inner.weight", rgb}};
  const std::vector<std::string> said = spread_first_convolution(1, network, weights);
  REQUIRE(said.size() == 1);
  CHECK(said[0].find("first.weight: ") == 0);
  CHECK(weights.at("first.weight") == gray);
  CHECK(weights.at("inner.weight") == rgb);
}

}  // namespace
}  // namespace lockstep
