#pragma once
// What a configuration may ask of some networks and not of others.

#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/models.h"

namespace lockstep {

/// The ResNet of that name with what the configuration says of it.
ResNetOptions configured_resnet(const std::string& name, const ModelOptions& options);

/// What only a U-Net takes. Not an error elsewhere: the configurations that come with the program
/// say them, and `-s model.arch=resnet50` is meant to be enough.
inline std::vector<std::string> unet_options() { return {"width", "depth"}; }

/// For an architecture without a ResNet. Throws ConfigError when one of these options is not its
/// default.
inline void check_no_resnet_options(const ModelOptions& options) {
  if (!options.small_images && options.resnet_width == ModelOptions{}.resnet_width) return;
  throw ConfigError(concat("model: ", options.arch, " is without a ResNet; leave out resnet_width ",
                           "and small_images"));
}

/// For an architecture without heads on a backbone. Throws ConfigError when one of these options is
/// not its default.
inline void check_no_backbone_options(const ModelOptions& options) {
  const bool default_stride = options.output_stride == ModelOptions{}.output_stride;
  if (!options.aux_head && !options.frozen_bn && !options.dropout && default_stride) return;
  throw ConfigError(concat(
      "model: ", options.arch, " has no auxiliary head, no dropout, no output stride and no ",
      "backbone apart; leave out aux_head, dropout, output_stride and frozen_bn"));
}

}  // namespace lockstep
