#pragma once
// Weights of networks for RGB, in networks for images of other channels.

#include <string>
#include <vector>

#include "lockstep/io/weights.h"

namespace lockstep {

/// Of every weight [out, 3, height, width] makes one of `channels` input channels: each gets the
/// sum over the three divided by the number of channels, so that an image of equal channels gives
/// what a gray one gave. Returns a sentence for each that was changed; with 3 channels none is.
std::vector<std::string> spread_first_convolution(int channels, TensorMap& weights);

}  // namespace lockstep
