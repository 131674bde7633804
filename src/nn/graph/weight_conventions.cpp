#include "nn/graph/weight_conventions.h"

#include <algorithm>
#include <string_view>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

struct Convention {
  std::string_view lacks;  // how the name of a tensor ends that only such files lack
  std::string_view has;    // and of one that only they have
  const char* says;
};

constexpr const char* kPlainResNet =
    "; take the weights of a plain ResNet (torchvision's, v1b), whose stem is one 7x7 convolution";

constexpr Convention kConventions[] = {
    {"conv1.weight", "stem.6.weight", "a ResNet-v1c or v1d, whose stem is three 3x3 convolutions"},
    {"conv1.weight", "conv1.6.weight", "a ResNet-v1c or v1d, whose stem is three 3x3 convolutions"},
    {"downsample.0.weight", "downsample.2.weight",
     "a ResNet-v1d, whose shortcuts begin with a pooling"},
    {"conv1.weight", "stem.conv1.norm.weight",
     "detectron2's: its own ResNets stride in other layers and take BGR images"},
};

bool any_ends_with(const std::vector<std::string>& names, std::string_view end) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name == end || name.ends_with("." + std::string(end));
  });
}

}  // namespace

void check_convention(const std::vector<std::string>& missing,
                      const std::vector<std::string>& unexpected) {
  for (const Convention& convention : kConventions) {
    if (!any_ends_with(missing, convention.lacks)) continue;
    if (!any_ends_with(unexpected, convention.has)) continue;
    throw DataError(concat("the weights are of another network: \"", convention.has,
                           "\" is a name of ", convention.says, kPlainResNet));
  }
}

}  // namespace lockstep
