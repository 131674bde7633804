#pragma once
// What a configuration may ask of networks with heads on a backbone, and of no others.

#include "lockstep/core/check.h"
#include "lockstep/nn/model.h"

namespace lockstep {

/// Of an architecture without. Throws ConfigError when one of these options is not as it comes.
inline void check_no_backbone_options(const ModelOptions& options) {
  const bool default_stride = options.output_stride == ModelOptions{}.output_stride;
  if (!options.aux_head && !options.frozen_bn && !options.dropout && default_stride) return;
  throw ConfigError(concat(
      "model: ", options.arch, " has no auxiliary head, no dropout, no output stride and no ",
      "backbone apart; leave out aux_head, dropout, output_stride and frozen_bn"));
}

}  // namespace lockstep
