#pragma once
// A BatchNorm call of several replicas by the kernels of kernels/operations, under the emulation
// and in any storage type; one operation of it can be run again with a fault planted.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/operand.h"
#include "checks/reference_batch_norm.h"
#include "kernels/emulated_gpu.h"

namespace lockstep::test::batch_norm_call {

struct BatchNormCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shards;  // rows of each replica
  std::int64_t channels = 1;
  Margins margins;
  float offset = 1;
  float spike = 0;  // added to every (rows / 8)th row, which the kernels take for the tensor's base
  bool affine = true, residual = false, relu = true;
  EpsMode eps_mode = EpsMode::kAdd;
  float eps = 1e-3F;
  int multiprocessors = 2;
};

enum Operation { kMoments, kForward, kReduce, kApply, kOperations };

/// What everybody computed: activations one replica after another, gradients of gamma and beta
/// added up, the rest of the first replica.
struct Result {
  Values moments, saved, running_mean, running_var, y;
  Values sums, weight_gradient, bias_gradient, dx, dresidual;
  int barriers[kOperations] = {};

  std::vector<std::uint32_t> bits() const {
    std::vector<std::uint32_t> all;
    for (const Values* values : {&moments, &saved, &running_mean, &running_var, &y, &sums,
                                 &weight_gradient, &bias_gradient, &dx, &dresidual}) {
      for (const float value : *values) all.push_back(std::bit_cast<std::uint32_t>(value));
    }
    return all;
  }
};

/// What goes in, of all replicas and as the storage type has it, and what should come out.
struct Inputs {
  Values x, residual, dy;  // [rows, C]
  Values weight, bias;     // [C]
  ReferenceBatchNorm reference;
  ReferenceBatchNorm::Output output;

  explicit Inputs(const BatchNormCase& p) {
    std::int64_t rows = 0;
    for (const std::int64_t shard : p.shards) rows += shard;
    const Shape shape{rows, p.channels};
    weight = random_values({p.channels}, 7);
    bias = random_values({p.channels}, 8);
    x = random_values(shape, 1);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] += p.offset * (1 + bias[i % bias.size()] / 4);
      const auto row = static_cast<std::int64_t>(i / bias.size());
      if (rows >= 8 && row % (rows / 8) == 0 && row / (rows / 8) < 8) x[i] += p.spike;
    }
    residual = random_values(shape, 2);
    dy = random_values(shape, 3);
    for (Values* activations : {&x, &residual, &dy}) {
      for (float& value : *activations) value = stored(p.dtype, value);
    }
    reference = {static_cast<std::size_t>(p.channels),
                 widen(x),
                 p.residual ? widen(residual) : Doubles{},
                 p.affine ? widen(weight) : Doubles{},
                 p.affine ? widen(bias) : Doubles{},
                 p.eps,
                 p.eps_mode == EpsMode::kClamp,
                 p.relu};
    output = reference.forward();
    for (std::size_t i = 0; i < dy.size(); ++i) {  // none where the ReLU has its kink
      if (p.relu && std::abs(output.linear[i]) < 1e-3) dy[i] = 0;
    }
  }
};

struct Replica {
  Operand x, residual, dy, y, dx, dresidual;
  Values moments, saved, sums, running_mean, running_var, weight_gradient, bias_gradient;

  Replica(const TypedBackend& on, const BatchNormCase& p, const Inputs& inputs,
          std::int64_t first_row, std::int64_t rows)
      : x(on, {rows, p.channels}, p.margins),
        residual(on, {rows, p.channels}, p.margins),
        dy(on, {rows, p.channels}, p.margins),
        y(on, {rows, p.channels}, p.margins),
        dx(on, {rows, p.channels}, p.margins),
        dresidual(on, {rows, p.channels}, p.margins) {
    const auto c = static_cast<std::size_t>(p.channels);
    moments = sums = Values(2 * c);
    saved = Values(3 * c);
    running_mean = running_var = weight_gradient = bias_gradient = Values(c);
    for (const Operation operation : {kMoments, kForward, kReduce, kApply}) forget(operation);
    const auto part = [&](const Values& whole) {
      const auto begin = whole.begin() + first_row * p.channels;
      return Values(begin, begin + rows * p.channels);
    };
    x.set(part(inputs.x));
    residual.set(part(inputs.residual));
    dy.set(part(inputs.dy));
  }

  /// Puts everything that the operation writes back to what it was before.
  void forget(Operation operation) {
    if (operation == kMoments) std::ranges::fill(moments, NAN);
    if (operation == kForward) {
      std::ranges::fill(saved, NAN);
      std::ranges::fill(running_mean, 0.5F);
      std::ranges::fill(running_var, 2.0F);
      forget(y);
    }
    if (operation == kReduce) {
      std::ranges::fill(sums, NAN);
      std::ranges::fill(weight_gradient, 0.0F);
      std::ranges::fill(bias_gradient, 0.0F);
    }
    if (operation == kApply) {
      forget(dx);
      forget(dresidual);
    }
  }

 private:
  static void forget(Operand& operand) {
    operand.set(Values(static_cast<std::size_t>(operand.tensor().shape.elements()), NAN));
  }
};

/// A whole BatchNorm call: one operation of all replicas after another.
class BatchNormCall {
 public:
  BatchNormCall(const BatchNormCase& problem, const Inputs& inputs)
      : p_(problem), inputs_(inputs), gpu_(problem.multiprocessors) {
    std::int64_t first = 0;
    replicas_.reserve(p_.shards.size());
    for (const std::int64_t rows : p_.shards) {
      replicas_.emplace_back(TypedBackend(*host_, p_.dtype), p_, inputs, first, rows);
      first += rows;
    }
    for (Replica& r : replicas_) {
      const std::int64_t rows = r.x.tensor().shape.rows();
      slots_.push_back({rows, r.moments.data()});
      sums_.push_back({rows, r.sums.data()});
    }
    if (p_.affine) affine_ = {inputs_.weight.data(), inputs_.bias.data()};
  }

  Result run(const emulation::Options& options) {
    Result result;
    for (const Operation now : {kMoments, kForward, kReduce, kApply}) {
      perform(now, options);
      result.barriers[now] = emulation::barriers_of_last_launch();
    }
    collect(result);
    return result;
  }

  /// After `run`: one operation once more, from the same state as before it.
  Result repeat(Operation operation, const emulation::Options& options) {
    std::ranges::fill(gpu_.counters(), 0U);  // a fault may have left them anywhere
    for (Replica& r : replicas_) r.forget(operation);
    perform(operation, options);
    Result result;
    collect(result);
    return result;
  }

  void use_dependent_launches() { gpu_.use_dependent_launches(); }

  bool counters_are_zero = true;
  bool margins_untouched = true;

 private:
  Tensor residual(const Operand& a) const { return p_.residual ? a.tensor() : Tensor{}; }

  void perform(Operation operation, const emulation::Options& options) {
    const WithOptions order(options);
    for (Replica& r : replicas_) perform(operation, r);
  }

  void perform(Operation operation, Replica& r) {
    const bool reads_peers = operation == kForward || operation == kApply;
    if (reads_peers && replicas_.size() > 1) gpu_.wait_for_peers();
    const BatchNormSaved saved{r.saved.data()};
    if (operation == kMoments) {
      gpu_.norms().batch_norm_moments(r.x.tensor(), r.moments.data(), 1);
    } else if (operation == kForward) {
      const RunningStatistics running{r.running_mean.data(), r.running_var.data(), 0.1};
      gpu_.norms().batch_norm_forward({r.x.tensor(), residual(r.residual), r.y.tensor(), affine_,
                                       slots_, p_.eps, p_.eps_mode, p_.relu, saved, running});
    } else if (operation == kReduce) {
      float* weight_gradient = p_.affine ? r.weight_gradient.data() : nullptr;
      float* bias_gradient = p_.affine ? r.bias_gradient.data() : nullptr;
      gpu_.norms().batch_norm_backward_reduce({r.x.tensor(), r.dy.tensor(), residual(r.y), affine_,
                                               saved, p_.relu, r.sums.data(), weight_gradient,
                                               bias_gradient});
    } else {
      gpu_.norms().batch_norm_backward_apply({r.x.tensor(), r.dy.tensor(), residual(r.y), affine_,
                                              saved, p_.relu, sums_, r.dx.tensor(),
                                              residual(r.dresidual), false});
    }
  }

  void collect(Result& result) {
    counters_are_zero = std::ranges::all_of(gpu_.counters(), [](unsigned n) { return n == 0; });
    const auto channels = static_cast<std::size_t>(p_.channels);
    result.weight_gradient = result.bias_gradient = Values(channels);
    for (const Replica& r : replicas_) {
      append(result.y, r.y.get());
      append(result.dx, r.dx.get());
      append(result.dresidual, r.dresidual.get());
      for (std::size_t c = 0; c < channels; ++c) {
        result.weight_gradient[c] += r.weight_gradient[c];
        result.bias_gradient[c] += r.bias_gradient[c];
      }
      margins_untouched = margins_untouched && r.y.margins_untouched() &&
                          r.dx.margins_untouched() && r.dresidual.margins_untouched();
    }
    result.moments = replicas_[0].moments;
    result.saved = replicas_[0].saved;
    result.running_mean = replicas_[0].running_mean;
    result.running_var = replicas_[0].running_var;
    result.sums = replicas_[0].sums;
  }

  const BatchNormCase& p_;
  const Inputs& inputs_;
  EmulatedGpu gpu_;
  std::unique_ptr<Backend> host_ = cpu_backend();  // of the operands
  std::vector<Replica> replicas_;
  AffineParameters affine_;
  std::vector<StatSlot> slots_, sums_;
};

}  // namespace lockstep::test::batch_norm_call
