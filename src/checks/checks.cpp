#include "checks/checks.h"

#include <exception>
#include <set>

namespace lockstep {

std::vector<Device> SelftestDevices::replicas(int count) const {
  std::set<int> ordinals;
  for (const Device& device : given) ordinals.insert(device.ordinal);
  const std::vector<int> distinct(ordinals.begin(), ordinals.end());
  const auto gpu_count = static_cast<int>(distinct.size());
  std::vector<Device> all;
  for (int i = 0; i < count; ++i) {
    const int gpu = distinct[static_cast<std::size_t>(i % gpu_count)];
    all.push_back(gpus() ? Device{DeviceKind::kCuda, gpu, i / gpu_count}
                         : Device{DeviceKind::kCpu, i, 0});
  }
  return all;
}

std::vector<Device> SelftestDevices::several() const {
  return given.size() >= 4 ? given : replicas(4);
}

SelftestChecks selftest_checks(const SelftestDevices& devices) {
  SelftestChecks all;
  for (const auto& group : {layer_checks, gradient_checks, batch_norm_checks, rival_norm_checks,
                            training_checks, failure_checks}) {
    for (SelftestCheck& check : group(devices)) all.push_back(std::move(check));
  }
  return all;
}

SelftestOutcome run_check(const SelftestCheck& check) {
  try {
    const Measured measured = check.run();
    const bool ok = !measured.relative || *measured.relative <= check.tolerance;  // NaN is not
    return {ok, measured, ok ? "" : "the error is larger than the tolerance"};
  } catch (const std::exception& error) {
    return {false, {}, error.what()};
  }
}

}  // namespace lockstep
