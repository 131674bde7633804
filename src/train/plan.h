#pragma once
// What a training will take, known before hours are spent on it: from the configuration, from the
// networks as they are built, and from a few real steps.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/nn/network.h"

namespace lockstep {

/// BatchNorm calls on one size of feature map.
struct NormPlan {
  std::int64_t height = 0, width = 0;
  std::vector<std::string> layers = {};  // in forward order
  std::int64_t channels = 0;             // of all of them together
  // Values that a channel's statistics come from, the fewest of any device or slice that has an
  // image: on each device by itself, over all devices, in slices of a device.
  std::int64_t local = 0, sync = 0, ghost_slice = 0;
};

/// Returns the norms of a network that take statistics in training, in forward order. `shares`:
/// [rank] images.
std::vector<NormPlan> plan_norms(const BatchNormConfig& bn, const std::vector<std::int64_t>& shares,
                                 const Network& network);

struct TrainingPlan {
  Config config = {};
  std::vector<Device> devices = {};
  Size size = {};                         // of training images
  std::int64_t global_batch = 0;          // images per step
  std::vector<std::int64_t> shares = {};  // [rank] images of a micro-batch
  std::int64_t train_images = 0, val_images = 0;
  std::int64_t samples_per_epoch = 0;  // crops_per_image of every training image
  std::int64_t steps_per_epoch = 0, steps = 0;
  std::int64_t dropped = 0;          // samples that an epoch leaves out
  std::int64_t evaluations = 0;      // over all validation images, of every kind
  std::int64_t precise_batches = 0;  // that precise statistics will take forward
  std::string largest_image = {};    // of an evaluation
  Size largest_size = {};            // as the network is shown it
  std::int64_t parameters = 0;
  std::optional<std::int64_t> receptive_radius = {};  // of the first output; none: the whole image
  std::vector<LayerSummary> layers = {};  // of the first device's network, in forward order
  std::size_t network_bytes = 0;          // of its plan (Network::planned_bytes)
  std::size_t offloaded_bytes = 0;        // of the host (Network::offloaded_bytes)
  std::vector<NormPlan> norms = {};
  std::int64_t exchanges = 0;        // BatchNorm exchanges per step, both directions
  std::int64_t exchanged_bytes = 0;  // of statistics that all devices post, per step
  std::vector<double> rates = {};    // learning rate at evenly spaced steps, the last one too
  std::vector<std::size_t> training_bytes = {};  // [rank] before the first step
  std::vector<std::size_t> planned_bytes = {};   // [rank] the most, with the evaluations
  std::vector<std::size_t> measured_bytes = {};  // [rank] the most, after the steps
  double step_seconds = 0;                       // median of the timed steps
  double image_seconds = 0;                      // of evaluating one image on one device
  double total_seconds = 0;                      // of the whole training, evaluations included
  std::vector<std::string> warnings = {};        // what training would warn of
};

/// Builds the training, does `timed` steps (and two before them) and evaluates a few images, on
/// real data. Writes nothing. Throws as a training would: ConfigError, DataError, ReplicaError.
TrainingPlan plan_training(const Config& config, const std::vector<Device>& devices, int timed);

/// The largest global batch whose training fits into `bytes` of memory for all devices together,
/// from the plan's measured memory and what a batch twice as large would take more; a multiple of
/// the number of devices. 0: not even one image per device does.
std::int64_t largest_batch(const TrainingPlan& plan, std::size_t bytes);

}  // namespace lockstep
