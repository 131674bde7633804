#include "run/inspect_weights.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

namespace lockstep {
namespace {

template <typename Element>
HostTensor tensor(const char* dtype, std::vector<std::int64_t> shape,
                  const std::vector<Element>& values) {
  HostTensor tensor{dtype, std::move(shape), {}};
  tensor.data.resize(values.size() * sizeof(Element));
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
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

Json problems_of(const TensorMap& tensors) { return examine_weights(tensors).at("problems"); }

TEST_CASE("facts of a tensor: elements, the range of its finite values, NaN and infinity, hash") {
  const TensorMap tensors{{"a", tensor<float>("F32", {2, 2}, {-3, kNaN, kInf, 2})},
                          {"b", tensor<std::int64_t>("I64", {}, {-5})},
                          {"c", tensor<float>("F32", {0}, {})},
                          {"d", tensor<std::uint8_t>("F8_E4M3", {2}, {1, 2})},
                          {"e", tensor<std::uint16_t>("F16", {2}, {0x3c00, 0xfc00})}};
  const Json json = examine_weights(tensors);
  const Json& facts = json.at("tensors");
  REQUIRE(facts.size() == 5);
  CHECK(facts[0].at("elements") == 4);
  CHECK(facts[0].at("bytes") == 16);
  CHECK(facts[0].at("min") == -3);
  CHECK(facts[0].at("max") == 2);
  CHECK(facts[0].at("nan") == 1);
  CHECK(facts[0].at("infinite") == 1);
  CHECK(facts[1].at("min") == -5);
  CHECK(facts[1].at("elements") == 1);
  CHECK(facts[2].at("hash") == "2d06800538d394c2");  // XXH3's published value of no bytes
  CHECK(facts[2].at("min").is_null());
  CHECK(facts[3].at("min").is_null());
  CHECK(facts[4].at("max") == 1);
  CHECK(json.at("problems") ==
        Json{"a: 1 NaN and 1 infinite of 4 elements", "e: 0 NaN and 1 infinite of 2 elements"});
}

TEST_CASE("the hash of all tensors sees names, types, shapes and bytes") {
  const auto hash_of = [](const TensorMap& tensors) { return examine_weights(tensors).at("hash"); };
  const TensorMap one{{"a", tensor<float>("F32", {2, 2}, {1, 2, 3, 4})}};
  CHECK(hash_of(one) == hash_of(TensorMap(one)));
  const std::vector<TensorMap> others{{{"b", tensor<float>("F32", {2, 2}, {1, 2, 3, 4})}},
                                      {{"a", tensor<float>("I32", {2, 2}, {1, 2, 3, 4})}},
                                      {{"a", tensor<float>("F32", {4}, {1, 2, 3, 4})}},
                                      {{"a", tensor<float>("F32", {2, 2}, {1, 2, 3, 5})}}};
  for (const TensorMap& other : others) CHECK(hash_of(one) != hash_of(other));
}

TEST_CASE("a sound BatchNorm layer has no problems") {
  CHECK(examine_weights(sound_layer()).at("batch_norms") == Json{"bn"});
  CHECK(problems_of(sound_layer()).empty());
}

TEST_CASE("every illness of a BatchNorm layer is told with its channels, and alone") {
  const std::vector<std::pair<TensorMap::value_type, std::string>> cases{
      {{"bn.running_var", floats({1, 0, 9e-9F, 1.1e-8F})},
       "bn: 2 of 4 (1, 2) have a running variance below 1e-08"},
      {{"bn.running_var", floats({1, -1, 1, 1})}, "bn: 1 of 4 (1) have a negative running"},
      {{"bn.running_var", floats({2e8F, 1, 1, 1})},
       "bn: 1 of 4 (0) have a running variance above 1e+08"},
      {{"bn.weight", floats({1, -1e-6F, 1, 1})}, "bn: 1 of 4 (1) have a gamma within 1e-05"},
      {{"bn.num_batches_tracked", tensor<std::int64_t>("I64", {}, {0})},
       "bn: 1 of 1 (0) have no batches tracked"}};
  for (const auto& [changed, complaint] : cases) {
    TensorMap tensors = sound_layer();
    tensors[changed.first] = changed.second;
    const Json problems = problems_of(tensors);
    INFO(complaint);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].get<std::string>().starts_with(complaint));
  }
  const std::vector<float> many(20, 0.0F);
  CHECK(problems_of({{"bn.running_var", floats(many)}})[0].get<std::string>().starts_with(
      "bn: 20 of 20 (0, 1, 2, 3, 4, 5, 6, 7 and 12 more) have"));
}

TEST_CASE("statistics that are not finite are an illness of their layer, too") {
  TensorMap tensors = sound_layer();
  tensors["bn.running_var"] = floats({1, 1, kInf, kNaN});
  tensors["bn.running_mean"] = floats({1, 1, 1, kNaN});
  CHECK(problems_of(tensors) ==
        Json{"bn.running_mean: 1 NaN and 0 infinite of 4 elements",
             "bn.running_var: 1 NaN and 1 infinite of 4 elements",
             "bn: 1 of 4 (3) have a running mean that is no finite number",
             "bn: 2 of 4 (2, 3) have a running variance that is no finite number"});
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
  const Json difference = compare_weights(first, second);
  CHECK(difference.at("equal") == false);
  CHECK(difference.at("equal_tensors") == 1);
  CHECK(difference.at("only_first") == Json{"gone"});
  CHECK(difference.at("only_second") == Json{"new"});
  const Json& changed = difference.at("changed");
  REQUIRE(changed.size() == 3);
  CHECK(changed[0].at("name") == "shape");
  CHECK_FALSE(changed[0].contains("max_absolute"));
  CHECK(changed[1].at("differing") == 1);
  CHECK(changed[1].at("max_absolute") == 1);
  CHECK(changed[2].at("elements") == 4);
  CHECK(changed[2].at("differing") == 3);
  CHECK(changed[2].at("max_absolute") == 0.5);
  CHECK(changed[2].at("max_relative").get<double>() == doctest::Approx(1.0 / 3));
  CHECK(compare_weights(first, first).at("equal") == true);
}

}  // namespace
}  // namespace lockstep
