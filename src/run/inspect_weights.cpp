#include "run/inspect_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/weight_files.h"
#include "run/checkpoint.h"

namespace lockstep {
namespace {

template <typename Element>
std::vector<double> widened(const HostTensor& tensor) {
  std::vector<double> values(tensor.data.size() / sizeof(Element));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, &tensor.data[i * sizeof(Element)], sizeof(Element));
    values[i] = static_cast<double>(element);
  }
  return values;
}

/// The elements as doubles; nullopt for a type that is not known here.
std::optional<std::vector<double>> values_of(const HostTensor& tensor) {
  const std::string& type = tensor.dtype;
  if (type == "F64") return widened<double>(tensor);
  if (float_bytes(type) > 0) {
    const std::vector<float> floats = to_floats(tensor);
    return std::vector<double>(floats.begin(), floats.end());
  }
  if (type == "I64") return widened<std::int64_t>(tensor);
  if (type == "I32") return widened<std::int32_t>(tensor);
  if (type == "I16") return widened<std::int16_t>(tensor);
  if (type == "I8") return widened<std::int8_t>(tensor);
  if (type == "U64") return widened<std::uint64_t>(tensor);
  if (type == "U32") return widened<std::uint32_t>(tensor);
  if (type == "U16") return widened<std::uint16_t>(tensor);
  if (type == "U8" || type == "BOOL") return widened<std::uint8_t>(tensor);
  return std::nullopt;
}

struct FiniteRange {
  std::optional<double> min, max;

  explicit FiniteRange(const std::vector<double>& values) {
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      min = std::min(min.value_or(value), value);
      max = std::max(max.value_or(value), value);
    }
  }
};

std::int64_t elements_of(const HostTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= extent;
  return elements;
}

TensorFacts examine(const std::string& name, const HostTensor& tensor) {
  TensorFacts facts{.name = name, .dtype = tensor.dtype, .shape = tensor.shape};
  facts.elements = elements_of(tensor);
  facts.bytes = tensor.data.size();
  facts.hash = fmt::format("{:016x}", XXH3_64bits(tensor.data.data(), tensor.data.size()));
  const auto values = values_of(tensor);
  if (!values) return facts;
  const FiniteRange range(*values);
  facts.min = range.min;
  facts.max = range.max;
  for (const double value : *values) {
    facts.nans += std::isnan(value) ? 1 : 0;
    facts.infinities += std::isinf(value) ? 1 : 0;
  }
  return facts;
}

// --- BatchNorm ---

constexpr const char* kRunningVar = ".running_var";

/// A tensor's values under a layer's name; nullopt when the file has none that are floats.
std::optional<std::vector<double>> floats_of(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || float_bytes(found->second.dtype) == 0) return std::nullopt;
  return values_of(found->second);
}

/// The channels for which `wrong` holds, as a complaint that `text` ends.
template <typename Wrong>
void complain(const std::optional<std::vector<double>>& values, const std::string& text,
              std::vector<std::string>& problems, const Wrong& wrong) {
  constexpr std::size_t kNamed = 8;
  if (!values) return;
  std::vector<std::size_t> channels;
  for (std::size_t i = 0; i < values->size(); ++i) {
    if (wrong((*values)[i])) channels.push_back(i);
  }
  if (channels.empty()) return;
  const std::size_t named = std::min(channels.size(), kNamed);
  const std::vector<std::size_t> first(channels.begin(),
                                       channels.begin() + static_cast<std::ptrdiff_t>(named));
  problems.push_back(fmt::format("{} of {} channels ({}{}) {}", channels.size(), values->size(),
                                 fmt::join(first, ", "), named < channels.size() ? ", ..." : "",
                                 text));
}

/// "replica.1.3" of a training state is layer 3 on device 1.
std::string layer_name(const std::string& prefix, const Metadata& metadata) {
  const std::size_t dot = prefix.rfind('.');
  if (!prefix.starts_with("replica.") || dot == std::string::npos) return prefix;
  const auto name = metadata.find("layer." + prefix.substr(dot + 1));
  if (name == metadata.end()) return prefix;
  return fmt::format("{} (device {})", name->second, prefix.substr(8, dot - 8));
}

std::optional<std::int64_t> counter_of(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.dtype != "I64" || found->second.data.size() != 8)
    return std::nullopt;
  std::int64_t value = 0;
  std::memcpy(&value, found->second.data.data(), sizeof(value));
  return value;
}

BatchNormHealth examine_layer(const TensorMap& tensors, const std::string& prefix,
                              const std::vector<double>& var) {
  BatchNormHealth health;
  health.channels = static_cast<std::int64_t>(var.size());
  const auto mean = floats_of(tensors, prefix + ".running_mean");
  const auto gamma = floats_of(tensors, prefix + ".weight");
  const FiniteRange var_range(var);
  health.var_min = var_range.min;
  health.var_max = var_range.max;
  if (mean) {
    const FiniteRange range(*mean);
    health.mean_min = range.min;
    health.mean_max = range.max;
  }
  health.num_batches_tracked = counter_of(tensors, prefix + ".num_batches_tracked");

  const auto not_finite = [](double value) { return !std::isfinite(value); };
  std::vector<std::string>& problems = health.problems;
  complain(mean, "have a running mean that is no finite number", problems, not_finite);
  complain(var, "have a running variance that is no finite number", problems, not_finite);
  complain(var, "have a negative running variance", problems,
           [](double value) { return value < 0; });
  complain(var,
           fmt::format("have a running variance below {:g}: what comes in is always the same",
                       kFlatVariance),
           problems, [](double value) { return value >= 0 && value < kFlatVariance; });
  complain(var, fmt::format("have a running variance above {:g}", kHugeVariance), problems,
           [](double value) { return std::isfinite(value) && value > kHugeVariance; });
  complain(gamma,
           fmt::format("have a gamma within {:g} of zero: what comes out is beta", kSmallGamma),
           problems, [](double value) { return std::abs(value) < kSmallGamma; });
  if (health.num_batches_tracked == 0)
    problems.emplace_back("num_batches_tracked is 0: no training has updated the statistics");
  return health;
}

// --- differences ---

template <typename Unsigned>
Unsigned bits_at(const HostTensor& tensor, std::int64_t element) {
  Unsigned bits;
  std::memcpy(&bits, &tensor.data[static_cast<std::size_t>(element) * sizeof(Unsigned)],
              sizeof(Unsigned));
  return bits;
}

/// Floating-point numbers in their order as integers: neighbours differ by 1, and the two zeros are
/// one.
template <typename Unsigned>
std::int64_t rank_of(Unsigned bits) {
  constexpr Unsigned kSign = Unsigned{1} << (8 * sizeof(Unsigned) - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & static_cast<Unsigned>(~kSign));
  return (bits & kSign) != 0 ? -magnitude : magnitude;
}

template <typename Unsigned>
std::uint64_t steps_between(const HostTensor& a, const HostTensor& b, std::int64_t element) {
  const std::int64_t first = rank_of(bits_at<Unsigned>(a, element));
  const std::int64_t second = rank_of(bits_at<Unsigned>(b, element));
  const auto high = static_cast<std::uint64_t>(std::max(first, second));
  return high - static_cast<std::uint64_t>(std::min(first, second));
}

std::optional<std::uint64_t> ulps_between(const HostTensor& a, const HostTensor& b,
                                          std::int64_t element) {
  if (a.dtype != b.dtype) return std::nullopt;
  switch (float_bytes(a.dtype)) {
    case 2:
      return steps_between<std::uint16_t>(a, b, element);
    case 4:
      return steps_between<std::uint32_t>(a, b, element);
    case 8:
      return steps_between<std::uint64_t>(a, b, element);
    default:
      return std::nullopt;
  }
}

bool same_bits(const HostTensor& a, const HostTensor& b, std::int64_t element) {
  const auto width = a.data.size() / static_cast<std::size_t>(std::max(elements_of(a), INT64_C(1)));
  const std::size_t at = static_cast<std::size_t>(element) * width;
  return std::memcmp(&a.data[at], &b.data[at], width) == 0;
}

void compare_elements(const HostTensor& a, const HostTensor& b, TensorDifference& difference) {
  const auto first = values_of(a), second = values_of(b);
  const bool numbers = first && second;
  std::int64_t largest = -1;
  for (std::int64_t i = 0; i < difference.elements; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (a.dtype == b.dtype ? same_bits(a, b, i) : numbers && (*first)[at] == (*second)[at])
      continue;
    ++difference.differing;
    if (!numbers) continue;
    const double x = (*first)[at], y = (*second)[at];
    if (!std::isfinite(x) || !std::isfinite(y)) {
      ++difference.not_finite;
      continue;
    }
    const double distance = std::abs(x - y), scale = std::max(std::abs(x), std::abs(y));
    difference.max_relative =
        std::max(difference.max_relative.value_or(0), scale > 0 ? distance / scale : 0);
    if (difference.max_absolute && distance <= *difference.max_absolute) continue;
    difference.max_absolute = distance;
    largest = i;
  }
  if (largest >= 0) difference.ulps = ulps_between(a, b, largest);
}

TensorDifference compare(const std::string& name, const HostTensor& a, const HostTensor& b) {
  TensorDifference difference{.name = name,
                              .first_dtype = a.dtype,
                              .second_dtype = b.dtype,
                              .first_shape = a.shape,
                              .second_shape = b.shape};
  if (a.shape != b.shape) return difference;
  difference.elements = elements_of(a);
  compare_elements(a, b, difference);
  return difference;
}

}  // namespace

std::vector<TensorFacts> examine_tensors(const TensorMap& tensors) {
  std::vector<TensorFacts> facts;
  for (const auto& [name, tensor] : tensors) facts.push_back(examine(name, tensor));
  return facts;
}

std::string tensors_hash(const TensorMap& tensors) { return content_hash({tensors, {}}); }

std::vector<BatchNormHealth> examine_batch_norms(const TensorMap& tensors,
                                                 const Metadata& metadata) {
  std::vector<BatchNormHealth> layers;
  for (const auto& [name, tensor] : tensors) {
    if (!name.ends_with(kRunningVar) || float_bytes(tensor.dtype) == 0) continue;
    const std::string prefix = name.substr(0, name.size() - std::strlen(kRunningVar));
    layers.push_back(examine_layer(tensors, prefix, *values_of(tensor)));
    layers.back().layer = layer_name(prefix, metadata);
  }
  return layers;
}

WeightsDifference difference_of(const TensorMap& first, const TensorMap& second) {
  WeightsDifference difference;
  for (const auto& [name, tensor] : first) {
    const auto other = second.find(name);
    if (other == second.end()) {
      difference.only_first.push_back(name);
    } else if (tensor.dtype == other->second.dtype && tensor.shape == other->second.shape &&
               tensor.data == other->second.data) {
      ++difference.equal;
    } else {
      difference.changed.push_back(compare(name, tensor, other->second));
    }
  }
  for (const auto& [name, tensor] : second) {
    if (!first.contains(name)) difference.only_second.push_back(name);
  }
  return difference;
}

}  // namespace lockstep
