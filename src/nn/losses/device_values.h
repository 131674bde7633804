#pragma once
// Numbers of a loss, one per channel of its output, on the device.

#include <string>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Uploads them; none: an empty Storage. `key`: what they are called, "loss.class_weight". Throws
/// ConfigError unless there is one for each of `channels`, or none.
Storage upload_per_channel(Backend& backend, const std::vector<float>& values,
                           std::int64_t channels, const std::string& key);

/// Null where there are none.
inline const float* floats_of(const Storage& values) {
  return static_cast<const float*>(values.data());
}

}  // namespace lockstep
