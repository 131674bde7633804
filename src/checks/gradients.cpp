// Gradients against central differences. L is a random projection of the outputs, summed in double;
// its derivative along a direction d of entries +-1 is (L(x + h d) - L(x - h d)) / (x+ - x-), where
// x+ and x- are the floats that x + h d and x - h d have become: the step has no rounding error.
// The two errors that are left, that of the difference (h^2) and of the fp32 outputs (eps / h), are
// equally large for h = eps^(1/3), and then of the order of eps^(2/3): the tolerance is 16 times
// that, relative to the norm of the gradient. A gradient g that is wrong by e shows as e*d, which
// is as large as |e| or larger in a third of all directions: in none of eight by a chance of 1 in
// 20, and below the tolerance in all of eight practically never where |e| is ten times that.
// So an error in one of a thousand elements is seen.
//
// Where a function has kinks (ReLU, maxima), inputs are chosen that no step takes across one.

#include <algorithm>
#include <cmath>
#include <limits>

#include "checks/probe.h"
#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"
#include "step/replica.h"

namespace lockstep {
namespace {

constexpr int kDirections = 8;
const double kStep = std::cbrt(static_cast<double>(std::numeric_limits<float>::epsilon()));
const double kGradientTolerance = 16 * kStep * kStep;
const char* const kCompared = "gradients of input and parameters, central differences";
const char* const kInput = "(input)";

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// The largest error of `gradient`, that of `function` at `x` with respect to x. Leaves x as it
/// was.
Measured check_block(Floats& x, std::span<const double> gradient, std::uint64_t index,
                     const std::function<double()>& function) {
  const Floats centre = x;
  Rng rng(1, RngPurpose::kTest, index);
  Measured all{0, 0};
  for (int k = 0; k < kDirections; ++k) {
    Floats above = centre, below = centre;
    double expected = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto step = static_cast<float>(rng.below(2) == 0 ? kStep : -kStep);
      above[i] += step;
      below[i] -= step;
      expected += gradient[i] * (static_cast<double>(above[i]) - below[i]);
    }
    x = above;
    double rise = function();
    x = below;
    rise -= function();
    const double numeric = rise / (2 * kStep), analytic = expected / (2 * kStep);
    const double apart = std::abs(numeric - analytic);
    all = worst(all, {apart, apart / std::max(norm(gradient), std::abs(numeric))});
  }
  x = centre;
  return all;
}

using Describe = std::function<Value*(NetworkBuilder& net, Value* x, const NormLayer& norm)>;

struct GradientCase {
  std::string name;
  Shape input;
  Describe describe;
  Floats (*values)(std::int64_t count, std::uint64_t index) = nullptr;  // null: normal
  NormLayer norm = {};
  bool several = false;         // on several devices
  NamedFloats statistics = {};  // running statistics; empty: as they begin
};

Measured check_layer(const GradientCase& c, const std::vector<Device>& devices) {
  const Model model = [&c](NetworkBuilder& net, Value* x, const NormLayer& layer) -> Outputs {
    return {{"out", c.describe(net, x, layer)}};
  };
  Probe probe({.devices = devices, .model = model, .norm = c.norm, .input = c.input});
  if (!c.statistics.empty()) probe.set_statistics(c.statistics);
  NamedFloats at = probe.random_parameters();
  at[kInput] =
      c.values != nullptr ? c.values(c.input.elements(), 1) : normal_floats(c.input.elements(), 1);
  const auto outputs = static_cast<std::int64_t>(probe.forward(at[kInput]).size());
  const Floats projection = normal_floats(outputs, 2);
  const auto projected = [&] {
    probe.set_parameters(at);
    return dot(probe.forward(at[kInput]), projection);
  };
  ProbePass pass = probe.step(at[kInput], projection);
  pass.grads[kInput] = widen(pass.input_grad);
  Measured all{0, 0};
  std::uint64_t index = 0;
  for (const auto& [name, gradient] : pass.grads) {
    all = worst(all, check_block(at.at(name), gradient, index++, projected));
  }
  return all;
}

// --- layers ---

GradientCase convolution(const std::string& name, const Conv2dOptions& options) {
  return {"conv2d, " + name, {2, 7, 6, 4}, [options](auto& net, auto* x, auto&) {
            return net.conv2d(x, "conv", options);
          }};
}

std::vector<GradientCase> gradient_cases() {
  const auto upsampled = [](bool align_corners) {
    return [=](NetworkBuilder& net, Value* x, const NormLayer&) {
      return net.upsample_bilinear(x, 5, 7, align_corners);
    };
  };
  return {
      convolution("3x3, padding", {.out_channels = 5, .kernel = 3, .padding = 1}),
      convolution("stride 2, bias",
                  {.out_channels = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = true}),
      convolution("dilation 2", {.out_channels = 5, .kernel = 3, .padding = 2, .dilation = 2}),
      convolution("2 groups, bias",
                  {.out_channels = 6, .kernel = 3, .padding = 1, .groups = 2, .bias = true}),
      convolution("1x1", {.out_channels = 3}),
      {"linear", {6, 5}, [](auto& net, auto* x, auto&) { return net.linear(x, "linear", 4); }},
      {"relu(x + residual)",
       {2, 4, 4, 3},
       [](auto& net, auto* x, auto&) { return net.relu(net.add(x, x)); },
       bimodal_floats},
      {"max_pool2d",
       {2, 6, 6, 3},
       [](auto& net, auto* x, auto&) {
         return net.max_pool2d(x, {3, 3, 2, 2, 1, 1});
       },
       distinct_floats},
      {"avg_pool2d",
       {2, 6, 6, 3},
       [](auto& net, auto* x, auto&) {
         return net.avg_pool2d(x, {3, 3, 2, 2, 1, 1});
       }},
      {"adaptive_avg_pool2d, uneven bins",
       {2, 7, 5, 3},
       [](auto& net, auto* x, auto&) { return net.adaptive_avg_pool2d(x, 3, 2); }},
      {"upsample_bilinear, align_corners", {2, 3, 4, 3}, upsampled(true)},
      {"upsample_bilinear", {2, 3, 4, 3}, upsampled(false)},
      {"concat",
       {2, 4, 3, 3},
       [](auto& net, auto* x, auto&) {
         return net.concat({x, net.conv2d(x, "conv", {.out_channels = 2}), x});
       }},
      {"dropout, mask fixed",
       {2, 5, 4, 3},
       [](auto& net, auto* x, auto&) { return net.dropout(x, 0.3F); }},
      {"reshape",
       {3, 2, 2, 3},
       [](auto& net, auto* x, auto&) {
         return net.linear(net.reshape(x, {3, 12}), "linear", 2, false);
       }},
      {.name = "all_reduce over devices",
       .input = {5, 2, 3, 2},
       .describe = [](auto& net, auto* x,
                      auto&) { return net.conv2d(net.all_reduce(x), "conv", {.out_channels = 2}); },
       .several = true},
  };
}

// --- BatchNorm ---

/// BatchNorm behind nothing: its input is the network's.
GradientCase norm_case(const std::string& name, const NormLayer& norm,
                       const Shape& input = {6, 3, 2, 3}) {
  return {.name = "batch_norm, " + name,
          .input = input,
          .describe = [](auto& net, auto* x, auto& layer) { return layer(net, x, "bn"); },
          .norm = norm,
          .several = norm.options.statistics() == StatisticsOf::kDevices};
}

std::vector<GradientCase> norm_cases() {
  GradientCase frozen = norm_case("frozen", FrozenBatchNorm());
  frozen.statistics = {{"bn.running_mean", {0.5F, -1, 2}}, {"bn.running_var", {0.3F, 1.5F, 4}}};
  // Above the variance of two channels and below that of one.
  GradientCase clamped =
      norm_case("eps clamped", SyncBatchNorm({.eps = 0.1F, .eps_mode = EpsMode::kClamp}));
  clamped.values = [](std::int64_t count, std::uint64_t index) {
    Floats values = normal_floats(count, index);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % 3 == 0 ? 1.0F : 0.1F;
    return values;
  };
  GradientCase fused = norm_case("sync, residual, relu", SyncBatchNorm());
  fused.describe = [](auto& net, auto* x, auto& layer) {
    return layer(net, x, "bn", {.relu = true, .residual = x});
  };
  fused.values = bimodal_floats;
  GradientCase group = norm_case("group(2), residual, relu", GroupNorm(2), {4, 3, 2, 6});
  group.describe = fused.describe;
  group.values = bimodal_floats;
  return {norm_case("local (N,C,H,W)", BatchNorm2d()),
          norm_case("sync (N,C)", SyncBatchNorm(), {12, 3}),
          norm_case("sync (N,C,L)", SyncBatchNorm(), {6, 5, 3}),
          norm_case("sync (N,C,H,W)", SyncBatchNorm()),
          norm_case("sync (N,C,D,H,W)", SyncBatchNorm(), {5, 2, 3, 2, 2}),
          norm_case("sync, no affine", SyncBatchNorm({.affine = false})),
          norm_case("ghost(3)", GhostBatchNorm(3)),
          frozen,
          clamped,
          fused,
          group,
          norm_case("instance", InstanceNorm(), {3, 4, 3, 5})};
}

// --- losses ---

/// A linear layer and one loss on several devices. The gradient is that which the optimizer was
/// given: after one step its momentum is that.
struct LossCase {
  Loss loss;
  Batch batch;
};

constexpr std::int64_t kLossSamples = 7, kLossPositions = 6, kLossFeatures = 5, kLossOutputs = 4;

Batch loss_batch() {
  Batch batch;
  batch.images = normal_floats(kLossSamples * kLossPositions * kLossFeatures, 1);
  for (std::int64_t n = 0; n < kLossSamples; ++n) batch.samples.push_back(n);
  return batch;
}

constexpr int kLossIgnored = 9;

LossCase label_case(const Loss& loss) {
  LossCase c{loss, loss_batch()};
  Rng rng(2, RngPurpose::kTest, 0);
  for (std::int64_t i = 0; i < kLossSamples * kLossPositions; ++i) {
    const std::uint32_t label = rng.below(kLossOutputs + 1);
    c.batch.labels.push_back(static_cast<Label>(label == kLossOutputs ? kLossIgnored : label));
  }
  return c;
}

LossCase value_case(const Loss& loss) {
  LossCase c{loss, loss_batch()};
  c.batch.targets["out"] = normal_floats(kLossSamples * kLossPositions * kLossOutputs, 3);
  return c;
}

struct NamedLossCase {
  const char* name;
  LossCase loss;
};

std::vector<NamedLossCase> loss_cases() {
  const Floats weights{0.5F, 2, 1, 1.5F};
  return {
      {"cross_entropy, class weights, ignored",
       label_case(CrossEntropyLoss{.class_weight = weights, .ignore_index = kLossIgnored})},
      {"cross_entropy, label smoothing",
       label_case(CrossEntropyLoss{
           .class_weight = weights, .ignore_index = kLossIgnored, .label_smoothing = 0.2F})},
      {"focal", label_case(FocalLoss{.alpha = weights, .ignore_index = kLossIgnored})},
      {"dice", label_case(DiceLoss{.ignore_index = kLossIgnored})},
      {"dice, image by image",
       label_case(DiceLoss{.per_image = true, .ignore_index = kLossIgnored})},
      {"mean squared error", value_case(MeanSquaredErrorLoss{})},
      {"bce with logits", value_case(BCEWithLogitsLoss{.pos_weight = weights})},
  };
}

Measured check_loss(const LossCase& c, const std::vector<Device>& devices) {
  const Model linear = [](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    return {{"out", net.linear(x, "linear", kLossOutputs)}};
  };
  DataParallel net({.devices = devices,
                    .model = linear,
                    .input = {kLossSamples, kLossPositions, kLossFeatures},
                    .losses = {{"out", c.loss}},
                    .optimizer = Sgd{.momentum = 0.5F, .weight_decay = 0},
                    .backend = {.tf32 = false}});
  net.train_step(c.batch, 0, 0.0F);
  const Floats grads = net.optimizer_state().slots.at("momentum_buffer");
  TensorMap weights = net.state_dict();
  Measured all{0, 0};
  std::uint64_t index = 0;
  for (const auto& parameter : net.replica(0).store().parameters()) {
    HostTensor& tensor = weights.at(parameter->name);
    auto* data = reinterpret_cast<float*>(tensor.data.data());
    Floats x(data, data + parameter->elements);
    const Doubles gradient =
        widen(std::span(grads).subspan(static_cast<std::size_t>(parameter->offset),
                                       static_cast<std::size_t>(parameter->elements)));
    all = worst(all, check_block(x, gradient, index++, [&] {
                  std::copy(x.begin(), x.end(), data);
                  net.load_state_dict(weights);
                  return net.train_step(c.batch, 1, 0.0F).loss;
                }));
    std::copy(x.begin(), x.end(), data);
  }
  return all;
}

}  // namespace

SelftestChecks gradient_checks(const SelftestDevices& devices) {
  const std::vector<Device> one = devices.replicas(1), several = devices.several();
  SelftestChecks checks;
  const auto add = [&](const std::string& name, std::function<Measured()> run) {
    checks.push_back({"gradients", name, kCompared, kGradientTolerance, std::move(run)});
  };
  for (const auto& cases : {gradient_cases(), norm_cases()}) {
    for (const GradientCase& c : cases) {
      add(c.name, [c, on = c.several ? several : one] { return check_layer(c, on); });
    }
  }
  for (const NamedLossCase& c : loss_cases()) {
    add(c.name, [loss = c.loss, several] { return check_loss(loss, several); });
  }
  return checks;
}

}  // namespace lockstep
