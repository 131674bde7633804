// Whole trainings: the same numbers on other devices, from run to run and with delays, virtual and
// real devices, and a small one beside loops in double. What a training comes to is all of its
// weights, running statistics, momenta, losses and norms of gradients.

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "checks/measure.h"
#include "checks/reference_batch_norm.h"
#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/predictor.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSide = 12, kClasses = 3, kMostImages = 8;
constexpr int kIgnored = 255;
/// With fewer images than devices, and not a multiple of their number.
constexpr std::int64_t kBatches[] = {8, 5, 7, 1};
const char* const kAll = "weights, statistics, momenta, losses, norms";

/// Every kind of layer that a segmentation network has.
Outputs small_net(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  const Conv2dOptions same{.out_channels = 8, .kernel = 3, .padding = 1};
  x = norm(net, net.conv2d(x, "stem.conv", same), "stem.bn", {.relu = true});
  Value* y = net.dropout(net.conv2d(x, "block.conv", same), 0.2F);
  x = norm(net, y, "block.bn", {.relu = true, .residual = x});
  y = net.conv2d(net.max_pool2d(x, {}), "low.conv", same);
  y = net.upsample_bilinear(norm(net, y, "low.bn", {.relu = true}), kSide, kSide, false);
  return {
      {"out", net.conv2d(net.concat({x, y}), "head", {.out_channels = kClasses, .bias = true})}};
}

Batch random_batch(std::int64_t images, std::uint64_t index) {
  Batch batch;
  batch.size = {static_cast<int>(kSide), static_cast<int>(kSide)};
  batch.images = normal_floats(images * kSide * kSide * 3, index);
  for (std::int64_t n = 0; n < images; ++n) batch.samples.push_back(n);
  Rng rng(3, RngPurpose::kTest, index);
  for (std::int64_t i = 0; i < images * kSide * kSide; ++i) {
    const std::uint32_t label = rng.below(kClasses + 1);
    batch.labels.push_back(static_cast<Label>(label == kClasses ? kIgnored : label));
  }
  return batch;
}

DataParallelOptions small_training(const std::vector<Device>& devices, const NormLayer& norm) {
  DataParallelOptions options;
  options.devices = devices;
  options.model = small_net;
  options.norm = norm;
  options.input = {kMostImages, kSide, kSide, 3};
  options.losses = {{"out", CrossEntropyLoss{.ignore_index = kIgnored}}};
  options.communicator.stall_timeout = std::chrono::seconds(20);
  options.backend = {.tf32 = false, .sums_by_image = true};
  options.placement_invariant = norm.options.statistics() == StatisticsOf::kDevices;
  return options;
}

Doubles numbers_of(const HostTensor& tensor) {
  if (tensor.dtype != "F32") {
    std::int64_t count = 0;
    std::memcpy(&count, tensor.data.data(), sizeof count);
    return {static_cast<double>(count)};
  }
  Floats values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return widen(values);
}

NamedDoubles numbers_of(const TensorMap& tensors) {
  NamedDoubles all;
  for (const auto& [name, tensor] : tensors) all[name] = numbers_of(tensor);
  return all;
}

/// A step for each batch; what it said of losses and gradients.
NamedDoubles train(DataParallel& net) {
  Doubles losses, norms;
  for (const std::int64_t images : kBatches) {
    const auto step = static_cast<std::int64_t>(losses.size());
    const Batch batch = random_batch(images, static_cast<std::uint64_t>(step));
    const StepResult result = net.train_step(batch, step, 0.05F);
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  return {{"(losses)", losses}, {"(norms)", norms}};
}

NamedDoubles trained(const DataParallelOptions& options) {
  DataParallel net(options);
  NamedDoubles all = train(net);
  all.merge(numbers_of(net.state_dict()));
  for (const auto& [slot, values] : net.optimizer_state().slots) {
    all["(" + slot + ")"] = widen(values);
  }
  return all;
}

// --- the same numbers ---

Measured check_placement(const std::vector<Device>& devices, const std::vector<Device>& one) {
  return difference(trained(small_training(devices, SyncBatchNorm())),
                    trained(small_training(one, SyncBatchNorm())));
}

/// Every replica waits up to half a millisecond before each exchange of the second run.
Measured check_repeats(const std::vector<Device>& devices, const NormLayer& norm) {
  DataParallelOptions options = small_training(devices, norm);
  const NamedDoubles first = trained(options);
  options.communicator.hook = [](int rank, const SyncCall& call) {
    Rng rng(4, RngPurpose::kTest, static_cast<std::uint64_t>(rank),
            static_cast<std::uint32_t>(call.index));
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(500)));
    return true;
  };
  return difference(trained(options), first);
}

/// Slices of one device take the places of four devices.
Measured check_virtual(const SelftestDevices& devices, const NormLayer& slices,
                       const NormLayer& whole) {
  return difference(trained(small_training(devices.replicas(1), slices)),
                    trained(small_training(devices.replicas(4), whole)));
}

/// Whose corrections grow from the first step on.
NormLayer renorm(int slices) { return BatchRenorm({.renorm_warmup = 1, .renorm_slices = slices}); }

// --- weights from one kind of BatchNorm to the other ---

DataParallel::EvalResult evaluate(DataParallel& net) {
  return net.evaluate(3, [](std::int64_t index) {
    return random_batch(1, 100 + static_cast<std::uint64_t>(index));
  });
}

Measured check_state_dict(const std::vector<Device>& several, const std::vector<Device>& one) {
  DataParallel sync(small_training(several, SyncBatchNorm()));
  train(sync);
  DataParallel local(small_training(one, BatchNorm2d()));
  local.load_state_dict(sync.state_dict());
  const DataParallel::EvalResult here = evaluate(sync), there = evaluate(local);
  LOCKSTEP_CHECK(here.confusion == there.confusion && here.loss == there.loss,
                 "expected the same evaluation with local BatchNorm, a loss of ", here.loss,
                 ", got ", there.loss);
  DataParallel back(small_training(several, SyncBatchNorm()));
  back.load_state_dict(local.state_dict());
  return difference(numbers_of(back.state_dict()), numbers_of(sync.state_dict()));
}

/// The mean loss and the counts of right and wrong classes from the logits of a Predictor.
Measured check_evaluation(const std::vector<Device>& several) {
  DataParallel net(small_training(several, SyncBatchNorm()));
  train(net);
  const DataParallel::EvalResult result = evaluate(net);
  Predictor predictor(small_net, net.state_dict(),
                      {.device = several.front(), .backend = {.tf32 = false}});
  std::vector<std::int64_t> confusion(kClasses * kClasses);
  double loss = 0, valid = 0;
  for (std::uint64_t index = 0; index < 3; ++index) {
    const Batch batch = random_batch(1, 100 + index);
    const Prediction said = predictor.predict(batch.images, {1, kSide, kSide, 3});
    for (std::size_t i = 0; i < batch.labels.size(); ++i) {
      if (batch.labels[i] == kIgnored) continue;
      const float* logits = said.logits.data() + i * kClasses;
      double sum = 0;
      for (std::int64_t c = 0; c < kClasses; ++c) sum += std::exp(static_cast<double>(logits[c]));
      loss += std::log(sum) - static_cast<double>(logits[batch.labels[i]]);
      valid += 1;
      ++confusion[static_cast<std::size_t>(batch.labels[i] * kClasses + said.classes[i])];
    }
  }
  LOCKSTEP_CHECK(result.confusion == confusion, "the confusion matrix counts other pixels");
  return difference(Doubles{result.loss}, Doubles{loss / valid});
}

/// Without statistics of the batch, micro-batches change nothing but roundings.
Measured check_accumulation(const std::vector<Device>& devices) {
  DataParallelOptions options = small_training(devices, FrozenBatchNorm());
  const NamedDoubles whole = trained(options);
  options.accumulate = 2;
  return difference(trained(options), whole);
}

/// Together they are the whole batch, on one device and on several.
Measured check_exact_accumulation(const std::vector<Device>& one,
                                  const std::vector<Device>& several) {
  const auto together = [](const std::vector<Device>& devices) {
    DataParallelOptions options = small_training(devices, SyncBatchNorm());
    options.accumulate = 3;
    options.accumulated_statistics = MicroBatches::kTogether;
    return trained(options);
  };
  const NamedDoubles whole = trained(small_training(one, SyncBatchNorm()));
  return worst(difference(together(one), whole), difference(together(several), whole));
}

// --- a training in double ---

constexpr std::size_t kToyIn = 5, kToyHidden = 6, kToyOut = 3, kToySamples = 10;
constexpr int kSteps = 20;
constexpr double kRate = 0.05, kDecay = 0.02, kNormDecay = 0.01, kBnMomentum = 0.1;

Outputs perceptron(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = norm(net, net.linear(x, "first", kToyHidden, false), "bn", {.relu = true});
  return {{"out", net.linear(x, "last", kToyOut)}};
}

/// y [n, out] = x [n, in] * weight [out, in], transposed, + bias.
Doubles times(const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const std::size_t out = bias.size(), in = weight.size() / out;
  Doubles y;
  for (std::size_t n = 0; n < kToySamples; ++n) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = bias[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[n * in + i] * weight[o * in + i];
      y.push_back(sum);
    }
  }
  return y;
}

/// The same network with its formulas written out.
struct PlainTraining {
  bool adamw = false;
  NamedDoubles state;
  NamedDoubles velocity = {}, squares = {};
  int steps = 0;
  double squared_norm = 0;  // of the last step's gradient

  void update(const std::string& name, const Doubles& grad) {
    const double decay = name.starts_with("bn.") ? kNormDecay : kDecay;
    Doubles& mean = velocity.try_emplace(name, grad.size(), 0.0).first->second;
    Doubles& square = squares.try_emplace(name, grad.size(), 0.0).first->second;
    for (std::size_t i = 0; i < grad.size(); ++i) {
      double& weight = state.at(name)[i];
      squared_norm += grad[i] * grad[i];
      adamw ? adamw_update(grad[i], decay, mean[i], square[i], weight)
            : sgd_update(grad[i], decay, mean[i], weight);
    }
  }

  static void sgd_update(double grad, double decay, double& velocity, double& weight) {
    velocity = 0.9 * velocity + grad + decay * weight;
    weight -= kRate * velocity;
  }

  /// Loshchilov and Hutter (2019), with their beta1, beta2 and eps.
  void adamw_update(double grad, double decay, double& mean, double& square, double& weight) const {
    weight -= kRate * decay * weight;
    mean = 0.9 * mean + 0.1 * grad;
    square = 0.999 * square + 0.001 * grad * grad;
    const double root = std::sqrt(square / (1 - std::pow(0.999, steps)));
    weight -= kRate * mean / (1 - std::pow(0.9, steps)) / (root + 1e-8);
  }

  /// Gradients of the weight [out, in] and of x, from that of y.
  static void linear_gradients(const Doubles& x, const Doubles& weight, const Doubles& grad_y,
                               Doubles& grad_weight, Doubles& grad_x) {
    const std::size_t in = x.size() / kToySamples, out = grad_y.size() / kToySamples;
    grad_weight.assign(weight.size(), 0);
    grad_x.assign(x.size(), 0);
    for (std::size_t n = 0; n < kToySamples; ++n) {
      for (std::size_t o = 0; o < out; ++o) {
        for (std::size_t i = 0; i < in; ++i) {
          grad_weight[o * in + i] += grad_y[n * out + o] * x[n * in + i];
          grad_x[n * in + i] += grad_y[n * out + o] * weight[o * in + i];
        }
      }
    }
  }

  void step(const Doubles& x, const Doubles& target) {
    ++steps;
    squared_norm = 0;
    const ReferenceBatchNorm bn{.channels = kToyHidden,
                                .x = times(x, state.at("first.weight"), Doubles(kToyHidden, 0.0)),
                                .residual = {},
                                .weight = state.at("bn.weight"),
                                .bias = state.at("bn.bias"),
                                .relu = true};
    const ReferenceBatchNorm::Moments moments = bn.moments();
    const ReferenceBatchNorm::Output out = bn.forward(moments);
    Doubles grad = times(out.y, state.at("last.weight"), state.at("last.bias"));
    for (std::size_t i = 0; i < grad.size(); ++i) {
      grad[i] = 2 * (grad[i] - target[i]) / static_cast<double>(grad.size());
    }
    Doubles grad_last, grad_hidden, grad_first, grad_x, grad_bias(kToyOut);
    for (std::size_t i = 0; i < grad.size(); ++i) grad_bias[i % kToyOut] += grad[i];
    linear_gradients(out.y, state.at("last.weight"), grad, grad_last, grad_hidden);
    const ReferenceBatchNorm::Gradients back = bn.backward(out, grad_hidden);
    linear_gradients(x, state.at("first.weight"), back.x, grad_first, grad_x);
    update("last.weight", grad_last);
    update("last.bias", grad_bias);
    update("bn.weight", back.weight);
    update("bn.bias", back.bias);
    update("first.weight", grad_first);
    follow("bn.running_mean", moments.mean);
    follow("bn.running_var", moments.unbiased_var());
  }

 private:
  void follow(const std::string& name, const Doubles& batch) {
    for (std::size_t c = 0; c < kToyHidden; ++c) {
      state.at(name)[c] += kBnMomentum * (batch[c] - state.at(name)[c]);
    }
  }
};

Measured check_plain_training(const std::vector<Device>& devices, bool adamw) {
  const auto decay = static_cast<float>(kDecay), norm_decay = static_cast<float>(kNormDecay);
  DataParallelOptions options;
  options.devices = devices;
  options.model = perceptron;
  options.norm = SyncBatchNorm();
  options.input = {kToySamples, kToyIn};
  options.losses = {{"out", MeanSquaredErrorLoss{}}};
  options.backend.tf32 = false;
  if (adamw) {
    options.optimizer = AdamW{.weight_decay = decay, .norm_weight_decay = norm_decay};
  } else {
    options.optimizer = Sgd{.weight_decay = decay, .norm_weight_decay = norm_decay};
  }
  DataParallel net(options);
  PlainTraining plain{adamw, numbers_of(net.state_dict())};
  double norm = 0;
  for (int step = 0; step < kSteps; ++step) {
    Batch batch;
    const auto index = static_cast<std::uint64_t>(2 * step);
    batch.images = normal_floats(kToySamples * kToyIn, index);
    batch.targets["out"] = normal_floats(kToySamples * kToyOut, index + 1);
    for (std::size_t n = 0; n < kToySamples; ++n) {
      batch.samples.push_back(static_cast<std::int64_t>(n));
    }
    norm = net.train_step(batch, step, static_cast<float>(kRate)).grad_norm;
    plain.step(widen(batch.images), widen(batch.targets.at("out")));
  }
  plain.state.at("bn.num_batches_tracked") = {kSteps};
  return worst(difference(Doubles{norm}, Doubles{std::sqrt(plain.squared_norm)}),
               difference(numbers_of(net.state_dict()), plain.state));
}

}  // namespace

SelftestChecks training_checks(const SelftestDevices& devices) {
  const std::vector<Device> one = devices.replicas(1), several = devices.several();
  constexpr double kRounding = static_cast<double>(std::numeric_limits<float>::epsilon());
  SelftestChecks checks;
  const auto add = [&](const std::string& name, const std::string& compared, double tolerance,
                       std::function<Measured()> run) {
    checks.push_back({"training", name, compared, tolerance, std::move(run)});
  };
  for (int count = 2; count <= 4; ++count) {
    add(concat("sync on ", count, " devices = on one"), kAll, 0,
        [one, on = devices.replicas(count)] { return check_placement(on, one); });
  }
  if (devices.given != one && devices.given.size() > 4) {
    add("sync on all given devices = on one", kAll, 0,
        [one, on = devices.given] { return check_placement(on, one); });
  }
  add("sync, repeated with random delays", kAll, 0,
      [several] { return check_repeats(several, SyncBatchNorm()); });
  add("local, repeated with random delays", kAll, 0,
      [several] { return check_repeats(several, BatchNorm2d()); });
  add("ghost(4), one device = local, four", kAll, 0,
      [devices] { return check_virtual(devices, GhostBatchNorm(4), BatchNorm2d()); });
  add("renorm of 4 slices, one device = renorm, four", kAll, 0,
      [devices] { return check_virtual(devices, renorm(4), renorm(1)); });
  for (const bool adamw : {false, true}) {
    add(concat("sync, ", kSteps, " steps of ", adamw ? "AdamW" : "SGD"),
        "weights, statistics, norm; plain loops in double", 8 * kSteps * kRounding,
        [several, adamw] { return check_plain_training(several, adamw); });
  }
  add("2 micro-batches, frozen = one batch", kAll, 64 * kRounding,
      [several] { return check_accumulation(several); });
  add("exact accumulation = whole batch", kAll, 0,
      [one, several] { return check_exact_accumulation(one, several); });
  add("weights: sync to local and back", "all tensors; and the evaluation", 0,
      [several, one] { return check_state_dict(several, one); });
  add("evaluation: counts and loss", "confusion matrix exactly; loss, plain loops", 64 * kRounding,
      [several] { return check_evaluation(several); });
  return checks;
}

}  // namespace lockstep
