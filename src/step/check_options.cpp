#include "step/check_options.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "lockstep/core/check.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/step.h"

namespace lockstep {
namespace {

template <typename... Words>
void require(bool holds, const Words&... words) {
  if (!holds) throw ConfigError(concat(words...));
}

void check_losses(const DataParallelOptions& options) {
  const std::size_t count = options.losses.size();
  require(count >= 1 && count <= kMaxLosses, "expected 1 to ", kMaxLosses, " losses, got ", count,
          "; losses names the outputs that are trained");
  for (const NamedLoss& loss : options.losses) loss.loss.check();
}

void check_precision(const DataParallelOptions& options) {
  if (options.precision == DType::kFloat32 || options.precision == DType::kBFloat16) return;
  if (options.precision != DType::kFloat16)
    throw ConfigError(
        concat("precision: expected fp32, bf16 or fp16, got ", to_string(options.precision)));
  for (const Device& device : options.devices) {
    if (device.kind != DeviceKind::kCpu) continue;
    throw ConfigError(concat("precision = \"fp16\" needs GPUs, but ", to_string(device),
                             " is asked for, and the CPU stores fp32 or bf16; use precision = ",
                             "\"bf16\", or the devices cuda:all"));
  }
}

void check_offload(const DataParallelOptions& options) {
  if (!options.offload) return;
  for (const Device& device : options.devices) {
    if (device.kind != DeviceKind::kCpu) continue;
    throw ConfigError(concat("offload = true needs GPUs, but ", to_string(device),
                             " is asked for, whose memory is the host's already; ",
                             "recompute and accumulate spare memory there"));
  }
}

void check_loss_scale(const LossScaleOptions& scale) {
  int exponent = 0;
  require(scale.initial >= 1 && std::isfinite(scale.initial) &&
              std::frexp(scale.initial, &exponent) == 0.5F,
          "the initial loss scale must be a power of two and at least 1, is ", scale.initial);
  require(scale.growth_interval > 0, "expected a growth interval of at least 1 step, got ",
          scale.growth_interval);
}

std::string norm_obstacle(const Network& network) {
  for (const BatchNormLayer* layer : batch_norms_of(network)) {
    const NormLayer& norm = layer->config().norm;
    if (norm.is_frozen()) continue;
    if (norm.options.statistics() != StatisticsOf::kDevices) {
      return concat("BatchNorm is not synchronized (", layer->name(), ")");
    }
    if (norm.options.process_groups.size() > 1) {
      return concat("BatchNorm is synchronized in groups (", layer->name(), ")");
    }
  }
  return {};
}

// Each call adds a tree of its own to the gradient.
std::string sharing_obstacle(const Network& network) {
  std::unordered_set<const Parameter*> seen;
  for (const auto& layer : network.layers()) {
    for (const Parameter* parameter : layer->parameters()) {
      if (!seen.insert(parameter).second) return concat("several calls share ", parameter->name);
    }
  }
  return {};
}

// The hook's ranks read the gradients of the others where they lie.
void check_gradient_hook(const DataParallelOptions& options) {
  const Device& first = options.devices.front();
  const bool apart = first.kind == DeviceKind::kCuda &&
                     std::any_of(options.devices.begin(), options.devices.end(),
                                 [&](const Device& d) { return d.ordinal != first.ordinal; });
  if (!options.on_gradients || !apart) return;
  throw ConfigError(
      "on_gradients works on CPU devices and on replicas of one GPU in each process, and these are "
      "several GPUs; use one, such as cuda:0x4, or give no hook");
}

}  // namespace

void check_options(const DataParallelOptions& options) {
  require(options.model != nullptr, "model is null; give a function that declares a network");
  require(!options.devices.empty(), "devices is empty; expected at least one device");
  require(options.input.rank() >= 2 && options.input.elements() > 0,
          "input: expected the shape of the largest global batch, [N, ..., C], got ",
          to_string(options.input));
  require(options.accumulate >= 1 && options.accumulate <= options.input.batch(), "expected 1 to ",
          options.input.batch(), " micro-batches of a batch of ", options.input.batch(), ", got ",
          options.accumulate);
  check_losses(options);
  check_gradient_hook(options);
  check_optimizer(options.optimizer, options.parameter_groups);
  check_clipping(options.gradient_clipping);
  if (!(options.average_decay >= 0 && options.average_decay < 1)) {
    throw ConfigError(
        concat("the decay of the weights' average must be at least 0 and below 1, is ",
               options.average_decay));
  }
  check_precision(options);
  check_offload(options);
  if (options.loss_scale) check_loss_scale(*options.loss_scale);
}

void check_process_groups(const DataParallelOptions& options, int ranks) {
  const BatchNormOptions& norm = options.norm.options;
  if (!norm.synchronizes() || norm.process_groups.empty()) return;
  ascending(norm.process_groups, ranks);
}

void check_recording(const DataParallelOptions& options, const GradientExchangeChoice& exchange,
                     bool can_record) {
  if (options.communicator.world.get().size() > 1) {
    throw ConfigError(
        "cuda_graph = true replays steps without the host, but the hosts of several processes "
        "exchange statistics and gradients in every step; set it to false, or use one process");
  }
  if (!can_record) {
    throw ConfigError(
        "cuda_graph = true needs replicas on GPUs and the transport 'event'; set it to false");
  }
  if (exchange.kind == GradientExchangeKind::kAllReduce) {
    throw ConfigError(
        concat("cuda_graph = true needs gradient_exchange = \"owner\"; it is \"all_reduce\" (",
               exchange.reason, ")"));
  }
  if (!options.norm.options.momentum) {
    throw ConfigError(
        "cuda_graph = true replays every step with one momentum: momentum = \"cumulative\" changes "
        "from step to step; give a number, or set cuda_graph to false");
  }
  if (options.micro_batches() > 1) {
    throw ConfigError(
        "cuda_graph = true records a step of one micro-batch; set accumulate to 1, or cuda_graph "
        "to false");
  }
  if (options.on_gradients) {
    throw ConfigError(
        "cuda_graph = true replays steps without the host, which on_gradients needs; set "
        "cuda_graph to false, or give no hook");
  }
  if (options.communicator.hook) {
    throw ConfigError(
        "cuda_graph = true replays exchanges without the host, so that nothing can be injected "
        "into them; set it to false");
  }
}

void check_recorded_losses(LossNodes losses) {
  for (const auto& loss : losses) {
    if (!loss->needs_host()) continue;
    throw ConfigError(concat(
        "cuda_graph = true replays steps without the host, which computes the loss at output '",
        loss->output(), "'; set it to false, or use a loss of the library's"));
  }
}

std::string placement_obstacle(const DataParallelOptions& options,
                               const GradientExchangeChoice& exchange, const Network& network) {
  if (!network.backend().sums_by_image()) {
    return "GPUs keep sums image by image only where placement invariance is asked for";
  }
  if (options.micro_batches() > 1) return "a batch is cut into micro-batches";
  if (exchange.kind != GradientExchangeKind::kOwner) {
    return "the gradient exchange is all_reduce, whose sums have an order of their own, not owner";
  }
  if (options.communicator.transport == TransportKind::kNccl) {
    return "the transport is nccl, which exchanges no sums of single images";
  }
  const std::string norm = norm_obstacle(network);
  return norm.empty() ? sharing_obstacle(network) : norm;
}

}  // namespace lockstep
