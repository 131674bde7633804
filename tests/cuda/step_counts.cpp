// Counts what one training step asks of GPUs: launches, graph nodes, bytes, events and waits, on a
// runtime that does nothing. Figures of the host code, not of a GPU.
//
//   step_counts [NETWORK...]      NETWORK: unet, fcn_resnet50; both without one

#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/dry_runtime.h"
#include "lockstep/core/check.h"
#include "lockstep/cuda.h"
#include "lockstep/nn/models.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

struct Case {
  std::string network;
  DType precision = DType::kFloat32;
  int replicas = 1;  // on one GPU, or on one each
  bool own_gpus = false, peer_access = true;
  bool graph = false;
  BatchNormMode norm = BatchNormMode::kSync;
};

std::vector<Device> devices_of(const Case& c) {
  std::vector<Device> devices;
  for (int i = 0; i < c.replicas; ++i) {
    devices.push_back({DeviceKind::kCuda, c.own_gpus ? i : 0, c.own_gpus ? 0 : i});
  }
  return devices;
}

DataParallelOptions options_of(const Case& c) {
  const bool is_unet = c.network == "unet";
  DataParallelOptions options;
  options.devices = devices_of(c);
  options.model = is_unet ? unet({.width = 64, .depth = 4, .num_classes = 11})
                          : fcn({.backbone = resnet_options("resnet50"), .num_classes = 21});
  options.norm.options.mode = c.norm;
  if (c.norm == BatchNormMode::kGroup) options.norm = GroupNorm(32);
  options.input = is_unet ? Shape{8, 360, 480, 3} : Shape{16, 512, 512, 3};
  options.losses = {{"out", CrossEntropyLoss{}}};
  options.optimizer = Sgd{.weight_decay = 1e-4F};
  options.precision = c.precision;
  options.cuda_graph = c.graph;
  return options;
}

Batch batch_of(const Shape& input) {
  Batch batch;
  batch.size = {static_cast<int>(input.height()), static_cast<int>(input.width())};
  batch.images.assign(static_cast<std::size_t>(input.elements()), 0.5F);
  batch.labels.assign(static_cast<std::size_t>(input.rows()), 1);
  for (std::int64_t n = 0; n < input.batch(); ++n) batch.samples.push_back(n);
  return batch;
}

dry::Counts operator-(const dry::Counts& a, const dry::Counts& b) {
  return {a.kernels - b.kernels,       a.convolutions - b.convolutions,
          a.copies - b.copies,         a.copied_bytes - b.copied_bytes,
          a.uploads - b.uploads,       a.uploaded_bytes - b.uploaded_bytes,
          a.downloads - b.downloads,   a.downloaded_bytes - b.downloaded_bytes,
          a.fills - b.fills,           a.filled_bytes - b.filled_bytes,
          a.records - b.records,       a.stream_waits - b.stream_waits,
          a.host_waits - b.host_waits, a.graph_launches - b.graph_launches};
}

void count(const Case& c) {
  dry::use(c.own_gpus ? c.replicas : 1, c.peer_access);
  const DataParallelOptions options = options_of(c);
  DataParallel run(options);
  const Batch batch = batch_of(options.input);
  constexpr int kSteps = 6, kCounted = 2;  // the last ones: everything is set up by then
  dry::Counts before;
  run.begin_step(batch, 0, 0.1F);
  for (int step = 1; step <= kSteps; ++step) {
    if (step == kSteps + 1 - kCounted) before = dry::counts();
    run.stage_next(batch);
    run.begin_step(batch, step, 0.1F);
    run.finish_step();
  }
  const dry::Counts d = dry::counts() - before;
  run.finish_step();
  const auto each = [](std::int64_t all) { return static_cast<double>(all) / kCounted; };
  const auto moved = [&](std::int64_t times, std::int64_t bytes) {
    std::ostringstream text;
    text << each(times) << ", " << std::fixed << std::setprecision(2) << each(bytes) / 1e6;
    return text.str();
  };
  const dry::Nodes nodes = dry::last_graph();
  const std::string graph = concat(nodes.kernels, " + ", nodes.convolutions, " + ", nodes.copies,
                                   " + ", nodes.fills, ", ", nodes.edges_between_devices);
  const std::string line = concat(
      "| ", c.network, " ", to_string(c.precision), " ", to_string(c.norm), " | ", c.replicas,
      " on ", c.own_gpus ? c.replicas : 1, " GPU(s)", c.peer_access ? "" : ", no peer access",
      " | ", c.graph ? graph : "", " | ", each(d.kernels), " | ", each(d.convolutions), " | ",
      moved(d.copies, d.copied_bytes), " | ", moved(d.uploads, d.uploaded_bytes), " | ",
      moved(d.downloads, d.downloaded_bytes), " | ", moved(d.fills, d.filled_bytes), " | ",
      each(d.records), " | ", each(d.stream_waits), " | ", each(d.host_waits), " |");
  std::puts(line.c_str());
}

int run(const std::vector<std::string>& networks) {
  std::puts(
      "Per step, of all replicas. Of a recorded step: the nodes of its graph.\n\n"
      "| network | replicas | graph nodes: kernels + convolutions + copies + fills, edges between "
      "devices | kernels | "
      "convolutions | copies, MB | uploads, MB | downloads, MB | fills, MB | event records | "
      "stream waits | host waits |\n|:--|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
  for (const std::string& network : networks) {
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      count({network, precision, 1});
      count({network, precision, 1, false, true, true});
      count({network, precision, 4});
      count({network, precision, 4, false, true, true});
    }
    count({network, DType::kBFloat16, 4, true, false});
    for (const int gpus : {4, 8}) {
      count({network, DType::kBFloat16, gpus, true, true});
      count({network, DType::kBFloat16, gpus, true, true, true});
    }
    for (const int gpus : {1, 4, 8}) {
      count({network, DType::kBFloat16, gpus, true, true, false, BatchNormMode::kGroup});
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  setenv("LOCKSTEP_AUTOTUNE", "", 1);
  std::vector<std::string> networks(arguments + 1, arguments + count);
  if (networks.empty()) networks = {"unet", "fcn_resnet50"};
  lockstep::register_cuda();
  return lockstep::run(networks);
}
