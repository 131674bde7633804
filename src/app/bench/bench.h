#pragma once
// What the benchmarks share. Times are wall-clock; every figure is a median with the 10th and
// 90th percentile beside it.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/command.h"
#include "compare/statistics.h"
#include "config/config.h"
#include "core/json.h"
#include "core/percentiles.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/device.h"
#include "train/training.h"

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

/// The devices asked for (the default if none).
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

/// Of a tensor on the host: several times the last cache, so that nothing is left of one tensor
/// when the next is done.
std::int64_t beyond_caches_bytes();

/// Between two tensors, so that they do not lie an exact power of two apart: caches and prefetchers
/// then take their lines for one another's (a third less bandwidth was seen), an accident of a
/// benchmark's sizes.
inline constexpr std::int64_t kGapBytes = 2129920;

/// to = from by all threads of the only device (CPU) or by the device's own copy; equal dense
/// tensors.
void copy_tensor(Backend& backend, const Tensor& from, const Tensor& to);

/// Bytes per second, read and written, of copies of a tensor beyond the caches: the best of a few.
double copy_bandwidth(Backend& backend);

/// Multiplications and additions per second of `threads` host threads that do nothing but fused
/// multiply-adds in registers: the best of many short runs.
double peak_flops(int threads);

/// Cycles per second of a core while `threads` of them compute, by additions that wait for one
/// another.
double clock_hertz(int threads);

/// Steps before the timed ones.
inline constexpr int kWarmupSteps = 3;

/// A configuration's training on random images that lie in memory: no loader, no logs. The time
/// does not depend on what the images show.
struct BenchTraining {
  Config config;
  std::vector<Device> devices;  // of this process
  Size size;                    // of images
  std::unique_ptr<DataParallel> replicas;
  Batch batch;  // the global batch of every step; a single image for an evaluation

  /// Begins step `index`; GPUs get the next batch while they work on this one.
  void begin_step(std::int64_t index);
  /// The whole step, and no other beside it.
  StepResult step(std::int64_t index);
  /// Evaluates the batch, which is a single image then, with the confusion matrix and the loss.
  /// Copies it once, in place of a loader.
  void evaluate();
};

/// Reads the configuration and builds the replicas, beside those of other processes. Throws
/// ConfigError, also when the configuration does not tell the size of the images.
BenchTraining bench_training(const BenchArguments& arguments);

/// Microseconds of one exchange, one figure per iteration: the difference between a recorded chain
/// of BatchNorm's moments and normalisation on tiny tensors with `exchanges` exchanges between
/// them, and the same chain without, per exchange. Empty where the transport between the devices
/// cannot record a step.
std::vector<double> captured_exchange_microseconds(std::span<const Device> devices,
                                                   std::int64_t channels, int exchanges, int iters);

}  // namespace lockstep
