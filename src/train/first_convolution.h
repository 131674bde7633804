#pragma once
// Weights of networks for RGB, in networks for images of other channels.

#include <string>
#include <vector>

#include "lockstep/io/weights.h"

namespace lockstep {

/// Makes every weight [out, 3, height, width] of `weights` one of `channels` input channels where
/// the network's weight of that name has so many, or where it has none: each channel gets the sum
/// over the three divided by their number, so that an image of equal channels gives what a gray one
/// gave. Returns a sentence for each that was changed; with 3 channels none is.
std::vector<std::string> spread_first_convolution(int channels, const TensorMap& network,
                                                  TensorMap& weights);

}  // namespace lockstep
