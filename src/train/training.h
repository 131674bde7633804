#pragma once
// What a training run consists of, built from a configuration, and how its state goes into a
// checkpoint and comes back. Knows no loop and no logs.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/checkpoint.h"

namespace lockstep {

using FaultHook = std::function<bool(int rank, const SyncCall& call)>;

/// Makes the process compute as the configuration wants it to. Before its first backend. Throws
/// ConfigError when the devices, the program or the processor cannot, or when the process already
/// computes otherwise.
void begin_computing(const Config& config, const std::vector<Device>& devices);

/// A message of the library that begins with the name of an option, "offload = true needs ...",
/// with the section that its key is in: "memory.offload = true needs ...". Others as they are.
std::string with_section(const std::string& text);

/// What `function` returns; ConfigErrors that it throws name keys so.
template <typename Function>
auto by_keys(const Function& function) {
  try {
    return function();
  } catch (const ConfigError& error) {
    throw ConfigError(with_section(error.what()));
  }
}

/// With what norm layers count in steps, for a training of so many.
Config with_steps(Config config, std::int64_t steps);

/// Without what a training asks of its own devices: that is not asked of others.
Config without_demands(Config config);
/// A small image that the network takes. In norms of each image every layer has several values of
/// it, which a ResNet's last ones have not of 32x32.
Size small_image(const Config& config);

/// What a configuration says of training batches, of `batch` images each.
LoaderOptions loader_options(const Config& config, std::int64_t batch);

/// What a configuration says of replicas on these devices.
DataParallelOptions replica_options(const Config& config, const std::vector<Device>& devices,
                                    std::int64_t global_batch, const Size& size,
                                    World& world = World::alone());

/// One replica per device of this process, beside those of the world's other processes.
/// `size`: of training images.
std::unique_ptr<DataParallel> make_replicas(const Config& config,
                                            const std::vector<Device>& devices,
                                            std::int64_t global_batch, const Size& size,
                                            const FaultHook& hook, World& world = World::alone());

/// Loads what fits of a file of weights into all replicas, that of RGB into a network for other
/// channels, too (first_convolution.h), which `notes` then tells of. Throws DataError for a file
/// that cannot be read, or of which nothing fits.
ImportSummary import_weights(DataParallel& replicas, const std::filesystem::path& file,
                             const Config& config, std::vector<std::string>* notes = nullptr);

/// Weights, the optimizer's state and running statistics as they are; the rest of the state is the
/// caller's.
Checkpoint read_checkpoint(DataParallel& replicas);

/// Brings all replicas to the state of a checkpoint. With another number of devices than it was
/// written with all get device 0's running statistics (said in `warnings`); throws ConfigError for
/// a mode in which every device has its own.
void restore_checkpoint(DataParallel& replicas, const Checkpoint& checkpoint,
                        const BatchNormConfig& bn, std::vector<std::string>& warnings);

}  // namespace lockstep
