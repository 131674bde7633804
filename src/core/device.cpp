#include "lockstep/core/device.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMaxReplicas = 256;

[[noreturn]] void reject(std::string_view text, const std::string& reason) {
  throw ConfigError(concat("devices '", text, "': ", reason,
                           "; expected cpu:COUNT, cuda:0,1,3, cuda:0xCOUNT or cuda:all"));
}

std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

int parse_count(std::string_view whole, std::string_view text) {
  const std::optional<int> count = parse_int(text);
  if (!count || *count < 1 || *count > kMaxReplicas) {
    reject(whole, concat("'", text, "' is not a count from 1 to ", kMaxReplicas));
  }
  return *count;
}

// The text is right and the machine lacks the device: a failure, not a usage error.
void require_gpu(int ordinal, int available) {
  if (ordinal < available) return;
  throw Error(concat("cuda:", ordinal, " is not there: ", available,
                     available == 1 ? " CUDA device answers" : " CUDA devices answer",
                     "; use -d cpu:N for N virtual devices on the CPU"));
}

std::vector<Device> parse_cuda_item(std::string_view whole, std::string_view item, int available) {
  const std::size_t times = item.find('x');
  const std::optional<int> ordinal = parse_int(item.substr(0, times));
  if (!ordinal) reject(whole, concat("'", item, "' is not a GPU number"));
  require_gpu(*ordinal, available);
  const int replicas =
      times == std::string_view::npos ? 1 : parse_count(whole, item.substr(times + 1));
  std::vector<Device> devices;
  for (int slot = 0; slot < replicas; ++slot) {
    devices.push_back({DeviceKind::kCuda, *ordinal, slot});
  }
  return devices;
}

std::vector<Device> parse_cuda(std::string_view whole, std::string_view list, int available) {
  std::vector<Device> devices;
  if (list == "all") {
    require_gpu(0, available);
    for (int ordinal = 0; ordinal < available; ++ordinal) {
      devices.push_back({DeviceKind::kCuda, ordinal, 0});
    }
    return devices;
  }
  while (true) {
    const std::size_t comma = list.find(',');
    for (const Device& device : parse_cuda_item(whole, list.substr(0, comma), available)) {
      if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
        reject(whole, concat("GPU ", device.ordinal,
                             " is listed twice (for several replicas on one GPU "
                             "write cuda:",
                             device.ordinal, "xCOUNT)"));
      }
      devices.push_back(device);
    }
    if (comma == std::string_view::npos) return devices;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string to_string(const Device& device) {
  std::string text = device.kind == DeviceKind::kCpu ? "cpu:" : "cuda:";
  text += std::to_string(device.ordinal);
  if (device.slot > 0) text += "#" + std::to_string(device.slot);
  return text;
}

std::vector<Device> parse_devices(std::string_view text, int cuda_device_count) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string_view list =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (kind == "cuda") return parse_cuda(text, list, cuda_device_count);
  if (kind != "cpu") reject(text, concat("unknown device kind '", kind, "'"));
  const int count = colon == std::string_view::npos ? 1 : parse_count(text, list);
  std::vector<Device> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    devices.push_back({DeviceKind::kCpu, ordinal, 0});
  }
  return devices;
}

}  // namespace lockstep
