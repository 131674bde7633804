#include "sync/transport.h"

#include <algorithm>
#include <ranges>
#include <string>

#include "core/words.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

class HostTransport final : public Transport {
 public:
  bool on_host() const override { return true; }
  StatPost post(const SyncCall&, const Group&, const StatSlot& local) override {
    return {local, nullptr};
  }
  std::span<const StatSlot> receive(const SyncCall&, const Group&,
                                    const StatPosts& posts) override {
    return posts.slots;
  }
};

constexpr const char* kRemedy =
    "; use cpu devices and the transport 'host', or a build with CUDA in which the program calls "
    "register_cuda()";

struct GpuTransport {
  TransportKind kind;
  MakeTransports make;
};

std::vector<GpuTransport>& gpu_transports() {
  static std::vector<GpuTransport> transports;  // filled by register_cuda()
  return transports;
}

std::string gpu_transport_names() {
  return joined(gpu_transports() | std::views::transform([](const GpuTransport& transport) {
                  return to_string(transport.kind);
                }));
}

bool on_gpu(const Device& device) { return device.kind == DeviceKind::kCuda; }

MakeTransports find_gpu_transport(TransportKind kind, const Device& gpu) {
  for (const GpuTransport& transport : gpu_transports()) {
    if (transport.kind == kind) return transport.make;
  }
  if (gpu_transports().empty()) {
    throw ConfigError(
        concat("there is no CUDA backend, which ", to_string(gpu), " needs", kRemedy));
  }
  throw ConfigError(concat("this build has no transport '", to_string(kind),
                           "' between GPUs; it has ", gpu_transport_names()));
}

void check_cpu_transport(TransportKind kind) {
  if (kind == TransportKind::kHost) return;
  if (gpu_transports().empty()) {
    throw ConfigError(concat("there is no CUDA backend, which the transport '", to_string(kind),
                             "' needs", kRemedy));
  }
  throw ConfigError(
      concat("the transport '", to_string(kind), "' is one between GPUs; cpu devices have 'host'"));
}

}  // namespace

Transports make_host_transports(std::span<const Device> devices) {
  Transports transports;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    transports.push_back(std::make_unique<HostTransport>());
  }
  return transports;
}

TransportKind resolve_transport(TransportKind wanted, const RankLayout& layout) {
  if (wanted != TransportKind::kAuto) return wanted;
  const bool gpus = std::ranges::any_of(layout.own_devices(), on_gpu);
  return gpus && layout.processes() == 1 ? TransportKind::kEvent : TransportKind::kHost;
}

Transports make_transports(const RankLayout& layout, const Broadcast& broadcast,
                           TransportKind wanted) {
  const std::span<const Device> devices = layout.own_devices();
  if (devices.empty()) throw ConfigError("no devices: expected at least one, such as cpu:1");
  const auto gpus = std::count_if(devices.begin(), devices.end(), on_gpu);
  const TransportKind transport = resolve_transport(wanted, layout);
  if (gpus == 0) {
    check_cpu_transport(transport);
    return make_host_transports(devices);
  }
  if (gpus != static_cast<std::ptrdiff_t>(devices.size())) {
    throw ConfigError("expected cpu devices or cuda devices, got some of both");
  }
  return find_gpu_transport(transport, devices.front())(layout, broadcast);
}

void provide_gpu_transport(TransportKind kind, MakeTransports make) {
  for (GpuTransport& transport : gpu_transports()) {
    if (transport.kind == kind) return void(transport.make = make);
  }
  gpu_transports().push_back({kind, make});
}

}  // namespace lockstep
