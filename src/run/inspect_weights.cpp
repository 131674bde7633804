#include "run/inspect_weights.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/words.h"
#include "io/weight_files.h"
#include "run/checkpoint.h"

namespace lockstep {
namespace {

using Values = std::optional<std::vector<double>>;

template <typename Element>
Values widened(const HostTensor& tensor) {
  std::vector<Element> elements(tensor.data.size() / sizeof(Element));
  if (!elements.empty()) std::memcpy(elements.data(), tensor.data.data(), tensor.data.size());
  return std::vector<double>(elements.begin(), elements.end());
}

/// The elements as doubles; nullopt for a type that is not known here.
Values values_of(const HostTensor& tensor) {
  if (tensor.dtype == "F64") return widened<double>(tensor);
  if (tensor.dtype == "I64") return widened<std::int64_t>(tensor);
  if (float_bytes(tensor.dtype) == 0) return std::nullopt;
  const std::vector<float> floats = to_floats(tensor);
  return std::vector<double>(floats.begin(), floats.end());
}

std::int64_t elements_of(const HostTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= extent;
  return elements;
}

Json examine(const std::string& name, const HostTensor& tensor) {
  std::optional<double> min, max;
  std::int64_t nans = 0, infinities = 0;
  for (const double value : values_of(tensor).value_or(std::vector<double>{})) {
    nans += std::isnan(value) ? 1 : 0;
    infinities += std::isinf(value) ? 1 : 0;
    if (!std::isfinite(value)) continue;
    min = std::min(min.value_or(value), value);
    max = std::max(max.value_or(value), value);
  }
  return {{"name", name},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"elements", elements_of(tensor)},
          {"bytes", tensor.data.size()},
          {"min", json_or_null(min)},
          {"max", json_or_null(max)},
          {"nan", nans},
          {"infinite", infinities},
          {"hash", fmt::format("{:016x}", XXH3_64bits(tensor.data.data(), tensor.data.size()))}};
}

// --- BatchNorm ---

constexpr const char* kRunningVar = ".running_var";

struct Illness {
  const char* tensor;
  const char* says;
  bool (*holds)(double value);
};

// What is below 1e-8 is a thousandth of the usual eps: the layer's output stays within 3 % of a
// constant. Above 1e8 are variances of values that fp16 (at most 65504) can hardly hold.
constexpr Illness kIllnesses[] = {
    {".running_mean", "a running mean that is no finite number",
     [](double value) { return !std::isfinite(value); }},
    {kRunningVar, "a running variance that is no finite number",
     [](double value) { return !std::isfinite(value); }},
    {kRunningVar, "a negative running variance", [](double value) { return value < 0; }},
    {kRunningVar, "a running variance below 1e-08: what comes in is always the same",
     [](double value) { return value >= 0 && value < 1e-8; }},
    {kRunningVar, "a running variance above 1e+08",
     [](double value) { return std::isfinite(value) && value > 1e8; }},
    {".weight", "a gamma within 1e-05 of zero: what comes out is beta",
     [](double value) { return std::abs(value) < 1e-5; }},
    {".num_batches_tracked", "no batches tracked: no training has updated its statistics",
     [](double value) { return value == 0; }}};

/// "encoder.bn: 2 of 16 (0, 4) have a negative running variance".
void examine_layer(const TensorMap& tensors, const std::string& layer, Json& problems) {
  constexpr std::size_t kNamed = 8;
  for (const Illness& illness : kIllnesses) {
    const auto found = tensors.find(layer + illness.tensor);
    if (found == tensors.end()) continue;
    const std::vector<double> values = values_of(found->second).value_or(std::vector<double>{});
    std::vector<std::size_t> ill;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (illness.holds(values[i])) ill.push_back(i);
    }
    if (ill.empty()) continue;
    problems.push_back(fmt::format("{}: {} of {} ({}) have {}", layer, ill.size(), values.size(),
                                   joined(ill, kNamed), illness.says));
  }
}

// --- differences ---

bool same_bits(const HostTensor& a, const HostTensor& b, std::size_t element) {
  const auto width = a.data.size() / static_cast<std::size_t>(elements_of(a));
  return std::memcmp(&a.data[element * width], &b.data[element * width], width) == 0;
}

Json compare(const std::string& name, const HostTensor& a, const HostTensor& b) {
  Json json{{"name", name}, {"dtypes", {a.dtype, b.dtype}}, {"shapes", {a.shape, b.shape}}};
  if (a.shape != b.shape) return json;
  const Values first = values_of(a), second = values_of(b);
  const bool numbers = first && second;
  std::optional<double> absolute, relative;
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(elements_of(a)); ++i) {
    if (a.dtype == b.dtype ? same_bits(a, b, i) : numbers && (*first)[i] == (*second)[i]) continue;
    ++differing;
    if (!numbers || !std::isfinite((*first)[i]) || !std::isfinite((*second)[i])) continue;
    const double x = (*first)[i], y = (*second)[i];
    const double distance = std::abs(x - y), scale = std::max(std::abs(x), std::abs(y));
    absolute = std::max(absolute.value_or(0), distance);
    relative = std::max(relative.value_or(0), scale > 0 ? distance / scale : 0);
  }
  json.update({{"elements", elements_of(a)},
               {"differing", differing},
               {"max_absolute", json_or_null(absolute)},
               {"max_relative", json_or_null(relative)}});
  return json;
}

}  // namespace

Json examine_weights(const TensorMap& tensors) {
  Json all = Json::array(), layers = Json::array(), problems = Json::array();
  for (const auto& [name, tensor] : tensors) {
    all.push_back(examine(name, tensor));
    const Json &nans = all.back()["nan"], &infinite = all.back()["infinite"];
    if (nans != 0 || infinite != 0)
      problems.push_back(fmt::format("{}: {} NaN and {} infinite of {} elements", name, nans.dump(),
                                     infinite.dump(), elements_of(tensor)));
    if (!name.ends_with(kRunningVar) || float_bytes(tensor.dtype) == 0) continue;
    layers.push_back(name.substr(0, name.size() - std::strlen(kRunningVar)));
    examine_layer(tensors, layers.back(), problems);
  }
  return {{"hash", content_hash({tensors, {}})},
          {"tensors", all},
          {"batch_norms", layers},
          {"problems", problems}};
}

Json compare_weights(const TensorMap& first, const TensorMap& second) {
  Json only_first = Json::array(), only_second = Json::array(), changed = Json::array();
  std::int64_t equal = 0;
  for (const auto& [name, a] : first) {
    const auto b = second.find(name);
    if (b == second.end()) {
      only_first.push_back(name);
    } else if (std::tie(a.dtype, a.shape, a.data) ==
               std::tie(b->second.dtype, b->second.shape, b->second.data)) {
      ++equal;
    } else {
      changed.push_back(compare(name, a, b->second));
    }
  }
  for (const auto& [name, tensor] : second) {
    if (!first.contains(name)) only_second.push_back(name);
  }
  return {{"equal", only_first.empty() && only_second.empty() && changed.empty()},
          {"equal_tensors", equal},
          {"only_first", only_first},
          {"only_second", only_second},
          {"changed", changed}};
}

}  // namespace lockstep
