#pragma once
// What the benchmarks share. Times are wall-clock; every figure is a median with the 10th and
// 90th percentile beside it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/command.h"
#include "compare/statistics.h"
#include "core/json.h"
#include "lockstep/core/device.h"

namespace lockstep {

struct BenchArguments {
  CommonArguments common;
  std::string what;              // step, layers, batch_norm, exchange
  std::filesystem::path config;  // step, layers
  bool eval = false;             // --eval: layers of an evaluation
  /// --against key=value: step: the settings of another training, timed in turns with this one.
  std::vector<std::string> against;
  int iters = 0;  // --iters; 0: not given, the benchmark's default
};

/// Seconds that `work` takes.
double seconds_of(const std::function<void()>& work);

/// "12.3 (12.1 to 13.0)".
std::string format_percentiles(const Percentiles& values, int digits);
Json percentiles_json(const Percentiles& values);

/// Peak resident memory of this process, in bytes.
std::int64_t peak_memory_bytes();

/// The devices asked for (default_devices() if none).
std::vector<Device> bench_devices(const BenchArguments& arguments);

/// A whole training step of a configuration on a batch that lies in memory. Of several processes,
/// which all take part, the first prints.
int bench_step(const BenchArguments& arguments);
/// BatchNorm + ReLU forward and backward on tensors beyond the caches, against the copy bandwidth.
int bench_batch_norm(const BenchArguments& arguments);
/// Every layer of a training step, forward and backward apart, beside what the machine can do.
int bench_layers(const BenchArguments& arguments);
/// One exchange of BatchNorm statistics between ranks that have nothing else to do. Processes: as
/// of bench_step.
int bench_exchange(const BenchArguments& arguments);

}  // namespace lockstep
