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

struct GpuTransport {
  const char* name;
  MakeGpuCommunicators make;
};

std::vector<GpuTransport>& gpu_transports() {
  static std::vector<GpuTransport> transports;  // filled before main, in any order
  return transports;
}

std::string gpu_transport_names() {
  std::string names;
  for (const GpuTransport& transport : gpu_transports()) {
    names += (names.empty() ? "" : ", ") + std::string(transport.name);
  }
  return names;
}

bool on_gpu(const Device& device) { return device.kind == DeviceKind::kCuda; }

MakeGpuCommunicators find_gpu_transport(const std::string& name, const Device& gpu) {
  for (const GpuTransport& transport : gpu_transports()) {
    if (transport.name == name) return transport.make;
  }
  if (gpu_transports().empty()) {
    throw ConfigError(concat("this build has no CUDA backend, which ", to_string(gpu),
                             " needs; use cpu devices and the transport 'host'"));
  }
  throw ConfigError(concat("this build has no transport '", name, "' between GPUs; it has ",
                           gpu_transport_names()));
}

void check_cpu_transport(const std::string& name) {
  if (name == "host") return;
  if (gpu_transports().empty()) {
    throw ConfigError(concat("this build has no CUDA backend, which the transport '", name,
                             "' needs; use cpu devices and the transport 'host'"));
  }
  throw ConfigError(
      concat("the transport '", name, "' is one between GPUs; cpu devices have 'host'"));
}

}  // namespace

void Communicator::start_all_reduce(float*, std::int64_t) {
  throw Error("this communicator has no all-reduce");
}

void Communicator::record_step(const std::function<void()>&) {
  throw Error("this transport cannot record a step");
}

void Communicator::replay_step() { throw Error("this transport cannot replay a step"); }

std::string resolve_transport(const std::string& wanted, std::span<const Device> devices) {
  if (wanted != "auto") return wanted;
  return std::any_of(devices.begin(), devices.end(), on_gpu) ? "event" : "host";
}

std::unique_ptr<CommunicatorGroup> make_communicators(std::span<const Device> devices,
                                                      const CommunicatorOptions& options) {
  if (devices.empty()) throw ConfigError("no devices: expected at least one, such as cpu:1");
  const int ranks = static_cast<int>(devices.size());
  check_sync_group(options.sync_group, ranks);
  const auto gpus = std::count_if(devices.begin(), devices.end(), on_gpu);
  const std::string transport = resolve_transport(options.transport, devices);
  if (transport != "host" && transport != "event" && transport != "nccl") {
    throw ConfigError(
        concat("unknown transport '", transport, "'; expected auto, host, event or nccl"));
  }
  if (gpus == 0) {
    check_cpu_transport(transport);
    return make_host_communicators(devices, options);
  }
  if (gpus != ranks) throw ConfigError("expected cpu devices or cuda devices, got some of both");
  return find_gpu_transport(transport, devices.front())(devices, options);
}

void provide_gpu_transport(const char* name, MakeGpuCommunicators make) {
  gpu_transports().push_back({name, make});
}

}  // namespace lockstep
