// Whole training steps of the U-Net against PyTorch: forward, backward, gradient exchange and SGD,
// on one to eight devices, with uneven batches and devices that have different numbers of labelled
// pixels.

#include <doctest/doctest.h>

#include <cstring>

#include "lockstep/nn/models.h"
#include "lockstep/parallel/data_parallel.h"
#include "oracle/golden_training.h"

namespace lockstep::oracle {
namespace {

DataParallelOptions options_of(const Json& about, BatchNormMode mode, int devices,
                               int virtual_devices) {
  DataParallelOptions options;
  for (int rank = 0; rank < devices; ++rank) options.devices.push_back({DeviceKind::kCpu, rank, 0});
  options.norm.options.mode = mode;
  options.norm.options.virtual_devices = virtual_devices;
  options.model = unet({about["width"], about["depth"], about["classes"]});
  options.optimizer = Sgd{.lr = about["lr"],
                          .momentum = about["momentum"],
                          .weight_decay = about["weight_decay"],
                          .norm_weight_decay = about["norm_weight_decay"]};
  options.losses = {
      {"out", CrossEntropyLoss{.class_weight = about["class_weight"].get<std::vector<float>>()}}};
  options.input = {about["batch"], about["size"][0], about["size"][1], 3};
  return options;
}

/// `peer`: of PyTorch's results that ours are to be as close as, ".f32" or ".bf16".
void check_weights(const Golden& golden, const TensorMap& weights, const std::string& peer) {
  Norms parameters, statistics;
  for (const auto& [name, tensor] : weights) {
    if (tensor.dtype != "F32") continue;
    std::vector<float> ours(tensor.data.size() / sizeof(float));
    std::memcpy(ours.data(), tensor.data.data(), tensor.data.size());
    const std::string golden_name = "final." + name;
    const Norms sum =
        norms(golden.doubles(golden_name + ".f64"), golden.floats(golden_name + peer), ours);
    (name.find("running") == std::string::npos ? parameters : statistics).add(sum);
  }
  check_norms("parameters", parameters);
  check_norms("running statistics", statistics);
}

void check_training(const Golden& golden, BatchNormMode mode, int devices, int virtual_devices,
                    DType precision = DType::kFloat32) {
  CAPTURE(devices);
  const Json about = golden.metadata("case");
  const std::string peer = precision == DType::kFloat32 ? ".f32" : ".bf16";
  DataParallelOptions options = options_of(about, mode, devices, virtual_devices);
  options.precision = precision;
  DataParallel training(options);
  training.load_state_dict(initial_weights(golden));
  std::vector<float> losses;
  for (std::int64_t step = 0; step < about["steps"].get<std::int64_t>(); ++step) {
    const StepResult result = training.train_step(batch_of(golden, about, step), step);
    losses.push_back(static_cast<float>(result.loss));
  }
  check_norms("losses", norms(golden.doubles("final.losses.f64"),
                              golden.floats("final.losses" + peer), losses));
  check_weights(golden, training.state_dict(), peer);
}

}  // namespace

TEST_CASE("synchronized training equals PyTorch on the whole batch, on any number of devices") {
  for (const std::string name : {"unet_whole_5", "unet_whole_7", "unet_whole_8"}) {
    CAPTURE(name);
    const auto golden = load_golden(name);
    if (!golden) continue;
    for (const int devices : {1, 2, 4, 8}) {
      check_training(*golden, BatchNormMode::kSync, devices, 1);
    }
  }
}

TEST_CASE("training with activations in bf16 is as close to float64 as autocast is") {
  for (const std::string name : {"unet_whole_5", "unet_whole_7", "unet_whole_8"}) {
    CAPTURE(name);
    const auto golden = load_golden(name);
    if (!golden) continue;
    for (const int devices : {1, 4}) {
      check_training(*golden, BatchNormMode::kSync, devices, 1, DType::kBFloat16);
    }
  }
}

TEST_CASE("local training on 4 devices and virtual training equal PyTorch chunk by chunk") {
  for (const std::string name : {"unet_chunked_4_of_7", "unet_chunked_4_of_8"}) {
    CAPTURE(name);
    const auto golden = load_golden(name);
    if (!golden) continue;
    check_training(*golden, BatchNormMode::kLocal, 4, 1);
    check_training(*golden, BatchNormMode::kGhost, 1, 4);
  }
}

}  // namespace lockstep::oracle
