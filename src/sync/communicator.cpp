#include "lockstep/sync/communicator.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "sync/host_communicator.h"

namespace lockstep {
namespace {

void check_sync_group(int sync_group, int ranks) {
  if (sync_group >= 0 && (sync_group == 0 || ranks % sync_group == 0)) return;
  throw ConfigError(concat("bn.sync_group = ", sync_group, " does not divide the ", ranks,
                           " devices; give a divisor, or 0 for one group of all devices"));
}

void check_transport(const std::string& transport, std::span<const Device> devices) {
  if (transport != "host" && transport != "event" && transport != "nccl") {
    throw ConfigError(concat("unknown transport '", transport, "'; expected host, event or nccl"));
  }
  const auto gpu = std::find_if(devices.begin(), devices.end(), [](const Device& device) {
    return device.kind == DeviceKind::kCuda;
  });
  if (transport == "host" && gpu == devices.end()) return;
  const std::string what =
      gpu != devices.end() ? to_string(*gpu) : "the transport '" + transport + "'";
  throw ConfigError(concat("this build has no CUDA backend, which ", what,
                           " needs; use cpu devices and the transport 'host'"));
}

}  // namespace

std::unique_ptr<CommunicatorGroup> make_communicators(std::span<const Device> devices,
                                                      const CommunicatorOptions& options) {
  if (devices.empty()) throw ConfigError("no devices: expected at least one, such as cpu:1");
  const int ranks = static_cast<int>(devices.size());
  check_sync_group(options.sync_group, ranks);
  check_transport(options.transport, devices);
  return std::make_unique<HostCommunicatorGroup>(ranks, options);
}

}  // namespace lockstep
