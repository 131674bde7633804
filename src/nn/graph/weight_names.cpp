#include "nn/graph/weight_names.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <optional>
#include <string_view>
#include <tuple>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMaxDepth = 8;  // of wrappers around each other

// How well a mapping fits.
struct Fit {
  std::size_t shapes = 0;  // tensors of the network that find their like
  std::size_t names = 0;   // that find one at all

  friend auto operator<=>(const Fit&, const Fit&) = default;
};

Fit fit_of(const NameMapping& mapping, const ShapesByName& file, const ShapesByName& network) {
  Fit fit;
  for (const auto& [name, shape] : network) {
    const auto found = file.find(mapping.source_of(name, file));
    if (found == file.end()) continue;
    ++fit.names;
    if (found->second == shape) ++fit.shapes;
  }
  return fit;
}

// Beginnings, up to a dot, of at least `least` of the names; and the empty one.
std::vector<std::string> common_prefixes(const ShapesByName& names, std::size_t least) {
  std::map<std::string, std::size_t> counts;
  for (const auto& [name, shape] : names) {
    std::size_t dot = name.find('.');
    for (int depth = 0; depth < kMaxDepth && dot != std::string::npos; ++depth) {
      ++counts[name.substr(0, dot + 1)];
      dot = name.find('.', dot + 1);
    }
  }
  std::vector<std::string> prefixes = {""};
  for (const auto& [prefix, count] : counts) {
    if (count >= least) prefixes.push_back(prefix);
  }
  return prefixes;
}

int changes_of(const NameMapping& mapping) {
  return int{!mapping.strip.empty()} + int{!mapping.add.empty()};
}

// In the order in which equals are preferred.
std::vector<NameMapping> candidates(const ShapesByName& file, const ShapesByName& network,
                                    std::size_t least) {
  std::vector<NameMapping> mappings;
  const std::vector<std::string> added = common_prefixes(network, least);
  for (const std::string& strip : common_prefixes(file, least)) {
    for (const std::string& add : added) {
      if (strip != add || strip.empty()) mappings.push_back({strip, add});
    }
  }
  const auto rank = [](const NameMapping& m) {
    return std::tuple(changes_of(m), m.strip.size() + m.add.size(), m.strip, m.add);
  };
  std::sort(mappings.begin(), mappings.end(),
            [&](const NameMapping& a, const NameMapping& b) { return rank(a) < rank(b); });
  return mappings;
}

bool same_sources(const NameMapping& a, const NameMapping& b, const ShapesByName& file,
                  const ShapesByName& network) {
  return std::all_of(network.begin(), network.end(), [&](const auto& tensor) {
    return a.source_of(tensor.first, file) == b.source_of(tensor.first, file);
  });
}

[[noreturn]] void refuse_both(const NameMapping& a, const NameMapping& b) {
  const bool of_file = a.strip != b.strip;
  const std::string& first = of_file ? a.strip : a.add;
  const std::string& second = of_file ? b.strip : b.add;
  if (!of_file) {
    throw DataError(concat("the weights fit the network's names under \"", first, "\" and under \"",
                           second, "\" alike; give their names the prefix"));
  }
  throw DataError(concat("the file has weights for this network under \"", first, "\" and under \"",
                         second, "\"; choose with model.weights_prefix = \"", first, "\" or \"",
                         second, "\" (select_prefix in a program)"));
}

// --- whose names they are ---

struct Convention {
  std::string_view lacks;  // how the name of a tensor ends that only such files lack
  std::string_view has;    // and of one that only they have
  const char* says;
  const char* take =
      "the weights of a plain ResNet (torchvision's, v1b), whose stem is one 7x7 convolution";
};

constexpr Convention kConventions[] = {
    {"conv1.weight", "stem.6.weight", "a ResNet-v1c or v1d, whose stem is three 3x3 convolutions"},
    {"conv1.weight", "conv1.6.weight", "a ResNet-v1c or v1d, whose stem is three 3x3 convolutions"},
    {"downsample.0.weight", "downsample.2.weight",
     "a ResNet-v1d, whose shortcuts begin with a pooling"},
    {"conv1.weight", "stem.conv1.norm.weight",
     "detectron2's: its own ResNets stride in other layers and take BGR images"},
    {"layer0.0.weight", "conv1.weight", "a ResNet whose stem is not that of PSPNet",
     "the weights of a whole PSPNet, or another network, such as deeplabv3_resnet50"},
};

bool any_ends_with(const std::vector<std::string>& names, std::string_view end) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name == end || name.ends_with("." + std::string(end));
  });
}

}  // namespace

NameMapping find_mapping(const ShapesByName& file, const ShapesByName& network) {
  const std::size_t least =
      std::max<std::size_t>(1, (std::min(file.size(), network.size()) + 1) / 2);
  NameMapping best;
  Fit best_fit = fit_of(best, file, network);
  std::optional<NameMapping> rival;  // as good as the best
  for (const NameMapping& mapping : candidates(file, network, least)) {
    const Fit fit = fit_of(mapping, file, network);
    if (fit.names < least || fit < best_fit) continue;
    if (fit > best_fit) {
      best = mapping;
      best_fit = fit;
      rival.reset();
    } else if (!rival && changes_of(mapping) == changes_of(best) &&
               !same_sources(mapping, best, file, network)) {
      rival = mapping;
    }
  }
  if (rival) refuse_both(best, *rival);
  return best;
}

void check_convention(const std::vector<std::string>& missing,
                      const std::vector<std::string>& unexpected) {
  for (const Convention& convention : kConventions) {
    if (!any_ends_with(missing, convention.lacks)) continue;
    if (!any_ends_with(unexpected, convention.has)) continue;
    throw DataError(concat("the weights are of another network: \"", convention.has,
                           "\" is a name of ", convention.says, "; take ", convention.take));
  }
}

}  // namespace lockstep
