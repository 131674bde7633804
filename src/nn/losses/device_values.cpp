#include "nn/losses/device_values.h"

#include "lockstep/core/check.h"

namespace lockstep {

Storage upload_per_channel(Backend& backend, const std::vector<float>& values,
                           std::int64_t channels, const std::string& key) {
  if (values.empty()) return {};
  if (values.size() != static_cast<std::size_t>(channels)) {
    throw ConfigError(concat(key, " has ", values.size(), " values for ", channels,
                             " classes; give one per class, or none"));
  }
  Storage memory = backend.allocate(values.size() * sizeof(float));
  backend.upload(Tensor(memory.data(), Shape{1, channels}), values.data());
  backend.synchronize();
  return memory;
}

}  // namespace lockstep
