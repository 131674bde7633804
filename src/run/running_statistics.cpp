#include "run/running_statistics.h"

#include "lockstep/core/check.h"

namespace lockstep {

ReplicaStatistics merge_running_statistics(std::span<const ReplicaStatistics> devices,
                                           bool pooled) {
  LOCKSTEP_CHECK(!devices.empty(), "no statistics to merge");
  ReplicaStatistics merged = devices.front();
  const auto count = static_cast<double>(devices.size());
  for (std::size_t layer = 0; layer < merged.size(); ++layer) {
    for (std::size_t c = 0; c < merged[layer].mean.size(); ++c) {
      double mean = 0, var = 0, spread = 0;
      for (const ReplicaStatistics& device : devices) {
        mean += static_cast<double>(device[layer].mean[c]) / count;
        var += static_cast<double>(device[layer].var[c]) / count;
      }
      for (const ReplicaStatistics& device : devices) {
        const double distance = static_cast<double>(device[layer].mean[c]) - mean;
        spread += distance * distance / count;
      }
      merged[layer].mean[c] = static_cast<float>(mean);
      merged[layer].var[c] = static_cast<float>(pooled ? var + spread : var);
    }
  }
  return merged;
}

}  // namespace lockstep
