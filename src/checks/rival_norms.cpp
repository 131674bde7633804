// What stands in for synchronized BatchNorm: norms of single images and Batch Renormalization,
// against loops in double.

#include <algorithm>
#include <cmath>

#include "checks/probe.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

const Shape kNormInput{5, 4, 3, 6};

Outputs norm_alone(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  return {{"out", norm(net, x, "bn")}};
}

/// A pass of one layer, and all that went in.
struct NormPass {
  Doubles x, grad_y, weight, bias;
  ProbePass got;
};

NormPass pass_of(Probe& probe) {
  const Floats input = normal_floats(kNormInput.elements(), 1);
  const Floats grad_output = normal_floats(kNormInput.elements(), 2);
  const NamedFloats parameters = probe.random_parameters();
  return {widen(input), widen(grad_output), widen(parameters.at("bn.weight")),
          widen(parameters.at("bn.bias")), probe.step(input, grad_output)};
}

/// What the definition gives.
struct Expected {
  Doubles y, x, weight, bias;

  explicit Expected(const NormPass& pass)
      : y(pass.x.size()), x(pass.x.size()), weight(pass.weight.size()), bias(pass.bias.size()) {}
};

Measured compare(const ProbePass& got, const Expected& expected) {
  Measured all = difference(std::span<const float>(got.output), expected.y);
  all = worst(all, difference(std::span<const float>(got.input_grad), expected.x));
  all = worst(all, difference(got.grads.at("bn.weight"), expected.weight));
  return worst(all, difference(got.grads.at("bn.bias"), expected.bias));
}

// --- norms of single images ---

/// One image and group as BatchNorm of one channel: its gradients are those of gamma * dy.
void add_group(const NormPass& pass, std::size_t image, std::size_t group, std::size_t width,
               Expected& all) {
  const std::size_t channels = pass.weight.size();
  const std::size_t values = pass.x.size() / static_cast<std::size_t>(kNormInput.batch());
  std::vector<std::size_t> places;
  ReferenceBatchNorm part;
  Doubles grads;
  for (std::size_t i = image * values; i < (image + 1) * values; ++i) {
    const std::size_t c = i % channels;
    if (c / width != group) continue;
    places.push_back(i);
    part.x.push_back(pass.x[i]);
    grads.push_back(pass.weight[c] * pass.grad_y[i]);
  }
  const ReferenceBatchNorm::Output out = part.forward();
  const ReferenceBatchNorm::Gradients of = part.backward(out, grads);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t c = places[i] % channels;
    all.y[places[i]] = out.y[i] * pass.weight[c] + pass.bias[c];
    all.x[places[i]] = of.x[i];
    all.weight[c] += pass.grad_y[places[i]] * out.y[i];
    all.bias[c] += pass.grad_y[places[i]];
  }
}

Measured check_image_norm(const std::vector<Device>& devices, const NormLayer& norm,
                          std::size_t groups) {
  Probe probe({.devices = devices, .model = norm_alone, .norm = norm, .input = kNormInput});
  const NormPass pass = pass_of(probe);
  LOCKSTEP_CHECK(
      probe.sync_group().callbacks(Direction::kForward) == 0 && probe.statistics().empty(),
      "expected neither an exchange between devices nor running statistics");
  Expected expected(pass);
  for (std::size_t image = 0; image < static_cast<std::size_t>(kNormInput.batch()); ++image) {
    for (std::size_t group = 0; group < groups; ++group) {
      add_group(pass, image, group, pass.weight.size() / groups, expected);
    }
  }
  return compare(pass.got, expected);
}

// --- Batch Renormalization ---

/// r and d of a channel (Ioffe 2017, algorithm 1).
struct Correction {
  double r, d;

  Correction(const BatchNormOptions& options, double mean, double var, double running_mean,
             double running_var) {
    const auto eps = static_cast<double>(options.eps);
    const auto max_r = static_cast<double>(options.renorm_max_r);
    const auto max_d = static_cast<double>(options.renorm_max_d);
    const double running = std::sqrt(running_var + eps);
    r = std::clamp(std::sqrt(var + eps) / running, 1 / max_r, max_r);
    d = std::clamp((mean - running_mean) / running, -max_d, max_d);
  }
};

/// The samples from `begin` on, of one device, as BatchNorm with another gamma and beta.
void add_part(const NormPass& pass, const NormLayer& norm, const NamedFloats& running,
              std::size_t begin, std::size_t count, Expected& all) {
  ReferenceBatchNorm part;
  part.channels = pass.weight.size();
  const auto first = static_cast<std::ptrdiff_t>(begin),
             end = static_cast<std::ptrdiff_t>(begin + count);
  part.x = Doubles(pass.x.begin() + first, pass.x.begin() + end);
  const ReferenceBatchNorm::Moments moments = part.moments();
  std::vector<Correction> corrections;
  for (std::size_t c = 0; c < part.channels; ++c) {
    corrections.emplace_back(norm.options, moments.mean[c], moments.var[c],
                             running.at("bn.running_mean")[c], running.at("bn.running_var")[c]);
    part.weight.push_back(pass.weight[c] * corrections[c].r);
    part.bias.push_back(pass.weight[c] * corrections[c].d + pass.bias[c]);
  }
  const ReferenceBatchNorm::Output out = part.forward(moments);
  const ReferenceBatchNorm::Gradients grads =
      part.backward(out, Doubles(pass.grad_y.begin() + first, pass.grad_y.begin() + end));
  std::copy(out.y.begin(), out.y.end(), all.y.begin() + first);
  std::copy(grads.x.begin(), grads.x.end(), all.x.begin() + first);
  for (std::size_t c = 0; c < part.channels; ++c) {
    all.weight[c] += corrections[c].r * grads.weight[c] + corrections[c].d * grads.bias[c];
    all.bias[c] += grads.bias[c];
  }
}

Measured check_renorm(const std::vector<Device>& devices, const NormLayer& norm) {
  Probe probe({.devices = devices, .model = norm_alone, .norm = norm, .input = kNormInput});
  const NamedFloats running{{"bn.running_mean", {0.5F, -1, 0.1F, 0, 0.2F, -0.1F}},
                            {"bn.running_var", {0.3F, 1.5F, 4, 1, 0.9F, 1.2F}}};
  probe.set_statistics(running);
  const NormPass pass = pass_of(probe);
  Expected expected(pass);
  const std::size_t values = pass.x.size() / static_cast<std::size_t>(kNormInput.batch());
  std::size_t begin = 0;
  for (const std::int64_t samples :
       chunk_sizes(kNormInput.batch(), static_cast<int>(devices.size()))) {
    const std::size_t count = static_cast<std::size_t>(samples) * values;
    if (count > 0) add_part(pass, norm, running, begin, count, expected);
    begin += count;
  }
  return compare(pass.got, expected);
}

BatchNormOptions renorm_options(float max_r, float max_d) {
  BatchNormOptions options;
  options.renorm_warmup = 0;
  options.renorm_max_r = max_r;
  options.renorm_max_d = max_d;
  return options;
}

}  // namespace

SelftestChecks rival_norm_checks(const SelftestDevices& devices) {
  const std::vector<Device> one = devices.replicas(1), several = devices.several();
  const std::string compared = "outputs and all gradients, plain loops in double";
  SelftestChecks checks;
  const auto add = [&](const std::string& name, std::function<Measured()> run) {
    checks.push_back({"rival_norms", name, compared, kRoundings, std::move(run)});
  };
  add("group(3)", [several] { return check_image_norm(several, GroupNorm(3), 3); });
  add("group(2), one device", [one] { return check_image_norm(one, GroupNorm(2), 2); });
  add("instance", [several] { return check_image_norm(several, InstanceNorm(), 6); });
  add("layer", [several] { return check_image_norm(several, LayerNorm(), 1); });
  add("renorm, limits that cut",
      [several] { return check_renorm(several, BatchRenorm(renorm_options(1.2F, 0.25F))); });
  add("renorm, limits that do not, one device",
      [one] { return check_renorm(one, BatchRenorm(renorm_options(50, 50))); });
  return checks;
}

}  // namespace lockstep
