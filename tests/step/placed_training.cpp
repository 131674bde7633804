#include "step/placed_training.h"

namespace lockstep::test {
namespace {

Outputs varied_net(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  const Conv2dOptions same{.out_channels = 8, .kernel = 3, .padding = 1};
  x = norm(net, net.conv2d(x, "stem", same), "stem_bn", {.relu = true});
  Value* y = net.dropout(net.conv2d(x, "a", same), 0.2F);
  x = norm(net, y, "a_bn", {.relu = true, .residual = x});
  Value* aux = net.conv2d(x, "aux", {.out_channels = kClasses, .bias = true});
  x = net.max_pool2d(x, {});
  x = net.conv2d(x, "b", {.out_channels = 8, .kernel = 3, .padding = 1, .groups = 2});
  x = norm(net, x, "b_bn", {.relu = true});
  Value* gate = net.prelu(net.adaptive_avg_pool2d(x, 1, 1), "squeeze", false);
  gate = net.sigmoid(net.conv2d(gate, "excite", {.out_channels = 8, .bias = true}));
  x = net.prelu(net.mul(x, gate), "slopes");
  x = net.conv_transpose2d(x, "up", {.out_channels = 8, .stride = 1, .bias = true});
  x = net.upsample_bilinear(x, kSize.height, kSize.width, false);
  return {{"out", net.conv2d(x, "head", {.out_channels = kClasses, .bias = true})}, {"aux", aux}};
}

}  // namespace

DataParallelOptions placed_options(int ranks, const Optimizer& optimizer) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync, 8);
  options.model = varied_net;
  options.losses.push_back({"aux", CrossEntropyLoss{.weight = 0.4F}});
  options.optimizer = optimizer;
  return options;
}

DataParallelOptions clipped_options(int ranks, const Optimizer& optimizer) {
  DataParallelOptions options = placed_options(ranks, optimizer);
  options.gradient_clipping = {.norm = 0.1F, .value = 0.01F};
  options.parameter_groups = {{.prefix = "stem", .frozen = true}};
  options.average_decay = 0.75;
  options.averages_statistics = true;
  return options;
}

Placed train_steps(DataParallel& run, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kBatches[] = {8, 8, 5, 7, 8};
  std::vector<double> losses, norms;
  for (std::int64_t step = begin; step < end; ++step) {
    const StepResult result = run.train_step(toy_batch(kBatches[step], step), step, 0.05F);
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  return {outcome_of(run, losses), norms};
}

Placed trained_in_steps(const DataParallelOptions& options) {
  DataParallel run(options);
  return train_steps(run);
}

}  // namespace lockstep::test
