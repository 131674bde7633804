#include "run/inspect_weights.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep {
namespace {

template <typename Element>
HostTensor tensor(const char* dtype, std::vector<std::int64_t> shape,
                  const std::vector<Element>& values) {
  HostTensor tensor{dtype, std::move(shape), {}};
  tensor.data.resize(values.size() * sizeof(Element));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

HostTensor floats(const std::vector<float>& values) {
  return tensor("F32", {static_cast<std::int64_t>(values.size())}, values);
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// A sound layer called "bn", to be made ill.
TensorMap sound_layer() {
  return {{"bn.weight", floats({1, 1, 1, 1})},
          {"bn.bias", floats({0, 0, 0, 0})},
          {"bn.running_mean", floats({0, -1, 2, 0})},
          {"bn.running_var", floats({1, 0.5F, 2, 1})},
          {"bn.num_batches_tracked", tensor<std::int64_t>("I64", {}, {7})}};
}

std::vector<std::string> problems_of(const TensorMap& tensors) {
  const std::vector<BatchNormHealth> layers = examine_batch_norms(tensors, {});
  REQUIRE(layers.size() == 1);
  return layers[0].problems;
}

TEST_CASE("facts of a tensor: elements, the range of its finite values, NaN and infinity, hash") {
  const TensorMap tensors{{"a", tensor<float>("F32", {2, 2}, {-3, kNaN, kInf, 2})},
                          {"b", tensor<std::int64_t>("I64", {}, {-5})},
                          {"c", tensor<float>("F32", {0}, {})},
                          {"d", tensor<std::uint8_t>("F8_E4M3", {2}, {1, 2})},
                          {"e", tensor<std::uint16_t>("F16", {2}, {0x3c00, 0xfc00})}};
  const std::vector<TensorFacts> facts = examine_tensors(tensors);
  REQUIRE(facts.size() == 5);
  CHECK(facts[0].elements == 4);
  CHECK(facts[0].bytes == 16);
  CHECK(facts[0].min == -3);
  CHECK(facts[0].max == 2);
  CHECK(facts[0].nans == 1);
  CHECK(facts[0].infinities == 1);
  CHECK(facts[1].min == -5);
  CHECK(facts[1].elements == 1);
  CHECK(facts[2].hash == "2d06800538d394c2");  // XXH3's published value of no bytes
  CHECK_FALSE(facts[2].min);
  CHECK_FALSE(facts[3].min);
  CHECK(facts[4].max == 1);
  CHECK(facts[4].infinities == 1);
}

TEST_CASE("the hash of all tensors sees names, types, shapes and bytes") {
  const TensorMap one{{"a", tensor<float>("F32", {2, 2}, {1, 2, 3, 4})}};
  CHECK(tensors_hash(one) == tensors_hash(TensorMap(one)));
  const std::vector<TensorMap> others{{{"b", tensor<float>("F32", {2, 2}, {1, 2, 3, 4})}},
                                      {{"a", tensor<float>("I32", {2, 2}, {1, 2, 3, 4})}},
                                      {{"a", tensor<float>("F32", {4}, {1, 2, 3, 4})}},
                                      {{"a", tensor<float>("F32", {2, 2}, {1, 2, 3, 5})}}};
  for (const TensorMap& other : others) CHECK(tensors_hash(one) != tensors_hash(other));
}

TEST_CASE("a sound BatchNorm layer has no problems, and its ranges are told") {
  const std::vector<BatchNormHealth> layers = examine_batch_norms(sound_layer(), {});
  REQUIRE(layers.size() == 1);
  CHECK(layers[0].layer == "bn");
  CHECK(layers[0].channels == 4);
  CHECK(layers[0].mean_min == -1);
  CHECK(layers[0].mean_max == 2);
  CHECK(layers[0].var_min == 0.5);
  CHECK(layers[0].var_max == 2);
  CHECK(layers[0].num_batches_tracked == 7);
  CHECK(layers[0].problems.empty());
}

TEST_CASE("every illness of a BatchNorm layer is told with its channels, and alone") {
  const std::vector<std::pair<TensorMap::value_type, std::string>> cases{
      {{"bn.running_var", floats({1, 0, 9e-9F, 1.1e-8F})},
       "2 of 4 channels (1, 2) have a running variance below 1e-08"},
      {{"bn.running_var", floats({1, -1, 1, 1})}, "1 of 4 channels (1) have a negative running"},
      {{"bn.running_var", floats({1, 1, kInf, kNaN})},
       "2 of 4 channels (2, 3) have a running variance that is no finite number"},
      {{"bn.running_var", floats({2e8F, 1, 1, 1})},
       "1 of 4 channels (0) have a running variance above 1e+08"},
      {{"bn.running_mean", floats({1, 1, 1, kNaN})},
       "1 of 4 channels (3) have a running mean that is no finite number"},
      {{"bn.weight", floats({1, -1e-6F, 1, 1})}, "1 of 4 channels (1) have a gamma within 1e-05"},
      {{"bn.num_batches_tracked", tensor<std::int64_t>("I64", {}, {0})},
       "num_batches_tracked is 0"}};
  for (const auto& [changed, complaint] : cases) {
    TensorMap tensors = sound_layer();
    tensors[changed.first] = changed.second;
    const std::vector<std::string> problems = problems_of(tensors);
    INFO(complaint);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].starts_with(complaint));
  }
  const std::vector<float> many(20, 0.0F);
  CHECK(problems_of({{"bn.running_var", floats(many)}})[0].starts_with(
      "20 of 20 channels (0, 1, 2, 3, 4, 5, 6, 7, ...) have"));
}

TEST_CASE("layers of a training state go by the names that it gives them") {
  const TensorMap tensors{{"replica.1.3.running_var", floats({1})}};
  CHECK(examine_batch_norms(tensors, {{"layer.3", "stem.bn"}})[0].layer == "stem.bn (device 1)");
  CHECK(examine_batch_norms(tensors, {})[0].layer == "replica.1.3");
}

TEST_CASE("files differ by names, types, shapes and values") {
  const TensorMap first{{"same", floats({1, 2})},
                        {"gone", floats({1})},
                        {"shape", floats({1, 2})},
                        {"type", floats({1, 2})},
                        {"values", floats({1, 4, -0.0F, kNaN})}};
  const TensorMap second{{"same", floats({1, 2})},
                         {"new", floats({1})},
                         {"shape", floats({1, 2, 3})},
                         {"type", tensor<double>("F64", {2}, {1, 3})},
                         {"values", floats({1.5F, 4, 0.0F, 1})}};
  const WeightsDifference difference = difference_of(first, second);
  CHECK_FALSE(difference.none());
  CHECK(difference.equal == 1);
  CHECK(difference.only_first == std::vector<std::string>{"gone"});
  CHECK(difference.only_second == std::vector<std::string>{"new"});
  REQUIRE(difference.changed.size() == 3);
  CHECK(difference.changed[0].name == "shape");
  CHECK_FALSE(difference.changed[0].max_absolute);
  const TensorDifference& type = difference.changed[1];
  CHECK(type.differing == 1);
  CHECK(type.max_absolute == 1);
  CHECK_FALSE(type.ulps);
  const TensorDifference& values = difference.changed[2];
  CHECK(values.elements == 4);
  CHECK(values.differing == 3);
  CHECK(values.not_finite == 1);
  CHECK(values.max_absolute == 0.5);
  CHECK(*values.max_relative == doctest::Approx(1.0 / 3));
  CHECK(values.ulps == (1U << 22));  // half of the numbers from 1 to 2
  CHECK(difference_of(first, first).none());
}

TEST_CASE("distances in ulps go across zero, in every type") {
  const auto ulps = [](const HostTensor& a, const HostTensor& b) {
    return difference_of({{"x", a}}, {{"x", b}}).changed.at(0).ulps;
  };
  const float least = std::bit_cast<float>(1);
  CHECK(ulps(floats({least}), floats({-least})) == 2);
  CHECK(ulps(floats({0.0F}), floats({-0.0F})) == 0);
  CHECK(ulps(floats({1}), floats({std::nextafter(1.0F, 2.0F)})) == 1);
  CHECK(ulps(tensor<double>("F64", {1}, {1}), tensor<double>("F64", {1}, {2})) == 1ULL << 52);
  CHECK(ulps(tensor<std::uint16_t>("BF16", {1}, {0x3f80}),
             tensor<std::uint16_t>("BF16", {1}, {0x3f83})) == 3);
  CHECK(ulps(tensor<std::uint16_t>("F16", {1}, {0x8001}),
             tensor<std::uint16_t>("F16", {1}, {0x0001})) == 2);
  CHECK_FALSE(ulps(tensor<std::int64_t>("I64", {1}, {1}), tensor<std::int64_t>("I64", {1}, {2})));
}

}  // namespace
}  // namespace lockstep
