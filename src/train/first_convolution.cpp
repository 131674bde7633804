#include "train/first_convolution.h"

#include <cstring>

#include "io/weight_files.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr std::int64_t kColors = 3;

HostTensor spread(const HostTensor& weight, int channels) {
  const std::vector<float> of_rgb = to_floats(weight);
  const auto out = static_cast<std::size_t>(weight.shape[0]);
  const auto taps = static_cast<std::size_t>(weight.shape[2] * weight.shape[3]);
  std::vector<float> values;
  values.reserve(out * static_cast<std::size_t>(channels) * taps);
  for (std::size_t o = 0; o < out; ++o) {
    std::vector<float> mean(taps);
    for (std::size_t c = 0; c < kColors; ++c) {
      for (std::size_t i = 0; i < taps; ++i) mean[i] += of_rgb[(o * kColors + c) * taps + i];
    }
    for (float& value : mean) value /= static_cast<float>(channels);
    for (int c = 0; c < channels; ++c) values.insert(values.end(), mean.begin(), mean.end());
  }
  HostTensor result{"F32", weight.shape, {}};
  result.shape[1] = channels;
  result.data.resize(values.size() * sizeof(float));
  std::memcpy(result.data.data(), values.data(), result.data.size());
  return result;
}

}  // namespace

std::vector<std::string> spread_first_convolution(int channels, const TensorMap& network,
                                                  TensorMap& weights) {
  std::vector<std::string> said;
  if (channels == kColors) return said;
  for (auto& [name, tensor] : weights) {
    const bool of_rgb = tensor.shape.size() == 4 && tensor.shape[1] == kColors;
    if (!of_rgb || float_bytes(tensor.dtype) == 0) continue;
    // A network's inner convolution may have three channels, too.
    const auto own = network.find(name);
    if (own != network.end() && own->second.shape.at(1) != channels) continue;
    tensor = spread(tensor, channels);
    said.push_back(concat(name, ": ", kColors, " channels in the file, ", channels,
                          " here: their sum is spread over all"));
  }
  return said;
}

}  // namespace lockstep
