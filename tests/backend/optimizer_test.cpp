// The optimizer step of a shard against PyTorch's formulas in double, and its gradient's norm.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "backend/device_number.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

/// What is done to every element, and the number of the update.
struct Update {
  Optimizer optimizer;
  std::int64_t number = 1;
};

struct UpdateCase {
  std::int64_t elements;
  std::size_t ranks;
  std::int64_t begin, end;
  float lr;
  Update update;
  float weight_decay;
  std::int64_t base = 0;  // the element that pointers point to; no multiple of 4: off 16 bytes
};

Update sgd(float momentum) { return {Sgd{.momentum = momentum}}; }
Update adamw(std::int64_t number) { return {AdamW{.beta1 = 0.8, .beta2 = 0.95}, number}; }

Update lion() { return {Lion{.beta1 = 0.8, .beta2 = 0.95}}; }
Update nesterov() { return {Sgd{.momentum = 0.9F, .nesterov = true}}; }
Update adam(std::int64_t number) { return {Adam{.beta1 = 0.8, .beta2 = 0.95}, number}; }
Update rmsprop(float momentum) { return {RMSprop{.alpha = 0.9, .momentum = momentum}}; }

Values squares_of(Values values) {
  for (float& value : values) value *= value;
  return values;
}

// Weights, state and per-rank gradients on a device; weights start equal on all ranks.
class Replicas {
 public:
  Replicas(Backend& backend, const UpdateCase& c)
      : range_{c.begin - c.base, c.end - c.base, c.weight_decay},
        first_(backend, {1, c.elements}, random_values({1, c.elements}, 3)),
        second_(backend, {1, c.elements}, squares_of(random_values({1, c.elements}, 4))) {
    for (std::size_t rank = 0; rank < c.ranks; ++rank) {
      const auto seed = static_cast<std::uint32_t>(10 + rank);
      grads_.emplace_back(backend, Shape{1, c.elements}, random_values({1, c.elements}, seed));
      weights_.emplace_back(backend, Shape{1, c.elements}, random_values({1, c.elements}, 2));
      grad_pointers_.push_back(grads_.back().floats() + c.base);
      weight_pointers_.push_back(weights_.back().floats() + c.base);
    }
  }

  OptimizerShard shard(const UpdateCase& c, double* squared_norm = nullptr) const {
    return {.grads = grad_pointers_,
            .weights = weight_pointers_,
            .state = {first_.floats() + c.base, second_.floats() + c.base},
            .ranges = {&range_, 1},
            .lr = c.lr,
            .optimizer = c.update.optimizer,
            .updates = {.begun = c.update.number},
            .squared_norm = squared_norm};
  }
  Values weights(std::size_t rank) const { return weights_[rank].get(); }
  Values grads(std::size_t rank) const { return grads_[rank].get(); }
  std::vector<Values> state() const { return {first_.get(), second_.get()}; }
  /// In double, of the sums over the ranks in fp32.
  double squared_norm(const UpdateCase& c) const {
    Values sums(static_cast<std::size_t>(c.elements));
    for (const Operand& rank : grads_) {
      const Values grads = rank.get();
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += grads[i];
    }
    double squares = 0;
    for (std::int64_t i = c.begin; i < c.end; ++i) {
      squares += static_cast<double>(sums[i]) * static_cast<double>(sums[i]);
    }
    return squares;
  }

 private:
  ParameterRange range_;
  Operand first_, second_;  // of the state
  std::deque<Operand> grads_, weights_;
  std::vector<const float*> grad_pointers_;
  std::vector<float*> weight_pointers_;
};

/// One element in double.
struct Element {
  double weight, state[2];

  void update(const Sgd& rule, std::int64_t, double grad, double lr, double weight_decay) {
    const double decayed = grad + weight_decay * weight;
    state[0] = rule.momentum * state[0] + decayed;
    weight -= lr * (rule.nesterov ? decayed + rule.momentum * state[0] : state[0]);
  }
  void update(const RMSprop& rule, std::int64_t, double grad, double lr, double weight_decay) {
    const double decayed = grad + weight_decay * weight;
    state[1] = rule.alpha * state[1] + (1 - rule.alpha) * decayed * decayed;
    const double root = std::sqrt(state[1]) + static_cast<double>(rule.eps);
    state[0] = rule.momentum * state[0] + decayed / root;
    weight -= lr * state[0];
  }
  void update(const Adam& rule, std::int64_t number, double grad, double lr, double weight_decay) {
    update(AdamW{.beta1 = rule.beta1, .beta2 = rule.beta2, .eps = rule.eps}, number,
           grad + weight_decay * weight, lr, 0);
  }
  void update(const Lion& rule, std::int64_t, double grad, double lr, double weight_decay) {
    const double blend = rule.beta1 * state[0] + (1 - rule.beta1) * grad;
    weight -= lr * ((blend > 0) - (blend < 0) + weight_decay * weight);
    state[0] = rule.beta2 * state[0] + (1 - rule.beta2) * grad;
  }
  void update(const AdamW& rule, std::int64_t number, double grad, double lr, double weight_decay) {
    weight -= lr * weight_decay * weight;
    state[0] = rule.beta1 * state[0] + (1 - rule.beta1) * grad;
    state[1] = rule.beta2 * state[1] + (1 - rule.beta2) * grad * grad;
    const auto steps = static_cast<double>(number);
    const double mean = state[0] / (1 - std::pow(rule.beta1, steps));
    const double square = state[1] / (1 - std::pow(rule.beta2, steps));
    weight -= lr * mean / (std::sqrt(square) + static_cast<double>(rule.eps));
  }
};

void check_step(Backend& backend, const UpdateCase& c) {
  const Replicas replicas(backend, c);
  const Values weight = replicas.weights(0);
  const std::vector<Values> state = replicas.state();
  std::vector<Values> grads;
  for (std::size_t rank = 0; rank < c.ranks; ++rank) grads.push_back(replicas.grads(rank));
  backend.optimizer().optimizer_update(replicas.shard(c));
  std::vector<double> expected_weight = widen(weight);
  std::vector<std::vector<double>> expected_state{widen(state[0]), widen(state[1])};
  for (std::int64_t i = c.begin; i < c.end; ++i) {
    double grad = 0;
    for (const Values& of_rank : grads) grad += of_rank[i];
    Element element{weight[i], {state[0][i], state[1][i]}};
    std::visit(
        [&](const auto& rule) {
          element.update(rule, c.update.number, grad, c.lr, c.weight_decay);
        },
        c.update.optimizer);
    expected_weight[i] = element.weight;
    for (int slot : {0, 1}) expected_state[slot][i] = element.state[slot];
  }
  const std::vector<Values> new_state = replicas.state();
  const Values new_weight = replicas.weights(c.ranks - 1);
  for (int slot : {0, 1}) CHECK(relative_error(new_state[slot], expected_state[slot]) < 1e-6);
  for (std::size_t rank = 0; rank < c.ranks; ++rank) {
    CHECK(relative_error(replicas.weights(rank), expected_weight) < 1e-6);
    CHECK(replicas.weights(rank) == replicas.weights(0));
  }
  for (std::int64_t i = 0; i < c.elements; ++i) {
    if (i >= c.begin && i < c.end) continue;
    CHECK(new_weight[i] == weight[i]);
    for (int slot : {0, 1}) CHECK(new_state[slot][i] == state[slot][i]);
  }
}

}  // namespace

TEST_CASE("the optimizer sums the ranks, updates its range and writes it to every rank") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    check_step(*named.backend, {40, 1, 0, 40, 0.1F, sgd(0.9F), 1e-2F});
    check_step(*named.backend, {40, 3, 7, 33, 0.1F, sgd(0.9F), 1e-2F});
    check_step(*named.backend, {40, 2, 13, 13, 0.1F, sgd(0.9F), 0});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.05F, sgd(0), 0.1F});
    check_step(*named.backend, {40, 1, 0, 40, 0.1F, adamw(1), 1e-2F});
    check_step(*named.backend, {40, 3, 7, 33, 0.1F, adamw(2), 0.5F});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.05F, adamw(9), 0});
    check_step(*named.backend, {1200, 2, 3, 1190, 0.05F, adamw(100'001), 0.1F});
    check_step(*named.backend, {40, 2, 3, 39, 0.01F, {AdamW{}}, 0.1F});
    check_step(*named.backend, {40, 3, 7, 33, 0.1F, lion(), 0.5F});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.05F, lion(), 0});
    check_step(*named.backend, {40, 3, 7, 33, 0.1F, nesterov(), 1e-2F});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.05F, nesterov(), 0.1F});
    check_step(*named.backend, {40, 3, 7, 33, 0.01F, adam(2), 0.5F});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.05F, adam(9), 0.1F});
    check_step(*named.backend, {40, 3, 7, 33, 0.01F, rmsprop(0), 0.5F});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.01F, rmsprop(0.9F), 0.1F});
  }
}

TEST_CASE("a large shard has the same bits with any number of threads") {
  const auto one = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  const auto three = make_backend({DeviceKind::kCpu, 0, 0}, 3);
  for (const Update& update : {sgd(0.9F), adamw(7), lion(), nesterov(), adam(7), rmsprop(0.9F)}) {
    const UpdateCase c{50001, 3, 1, 50000, 0.01F, update, 1e-4F};
    const Replicas a(*one, c), b(*three, c);
    const DeviceNumber<double> norm_of_a(*one, 0.0), norm_of_b(*three, 0.0);
    one->optimizer().optimizer_update(a.shard(c, norm_of_a.pointer()));
    three->optimizer().optimizer_update(b.shard(c, norm_of_b.pointer()));
    CHECK(norm_of_a.get() == norm_of_b.get());
    CHECK(a.weights(2) == b.weights(2));
    CHECK(a.state() == b.state());
  }
}

TEST_CASE("a range's learning rate is the shard's times the range's multiplier") {
  const std::int64_t elements = 400;
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const Update& update : {sgd(0.9F), adamw(3), lion(), nesterov(), adam(3), rmsprop(0.9F)}) {
      // A quarter and eight times are exact: the same bits as with the product for a rate.
      const UpdateCase c{elements, 2, 0, elements, 0.05F, update, 0.1F};
      const Replicas together(*named.backend, c), alone(*named.backend, c);
      const ParameterRange ranges[] = {{1, 90, 0.1F, 8}, {90, 203, 0.1F}, {203, 399, 0.1F, 0.25F}};
      OptimizerShard shard = together.shard(c);
      shard.ranges = ranges;
      named.backend->optimizer().optimizer_update(shard);
      for (ParameterRange range : ranges) {
        shard = alone.shard(c);
        shard.lr = c.lr * range.lr_scale;
        range.lr_scale = 1;
        shard.ranges = {&range, 1};
        named.backend->optimizer().optimizer_update(shard);
      }
      CHECK(together.weights(1) == alone.weights(1));
      CHECK(together.state() == alone.state());
    }
  }
}

TEST_CASE("AdamW counts its updates in device memory, without the steps that were left out") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const UpdateCase c{400, 2, 3, 399, 0.05F, adamw(4), 0.1F};
    const Replicas expected(*named.backend, c), got(*named.backend, c), other(*named.backend, c);
    named.backend->optimizer().optimizer_update(expected.shard(c));
    const DeviceNumber<std::int64_t> begun(*named.backend, 7), skipped(*named.backend, 3);
    OptimizerShard shard = other.shard(c);
    shard.updates = {{0, begun.pointer()}};
    named.backend->optimizer().optimizer_update(shard);
    CHECK(other.weights(0) != expected.weights(0));  // of the seventh
    shard = got.shard(c);
    shard.updates = {{0, begun.pointer()}, skipped.pointer()};
    named.backend->optimizer().optimizer_update(shard);
    CHECK(got.weights(0) == expected.weights(0));
    CHECK(got.state() == expected.state());
  }
}

TEST_CASE("AdamW leaves elements alone that never had a gradient and are zero") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Values zeros(40, 0.0F);
    const Operand nothing(*named.backend, {1, 40}, zeros), state0(*named.backend, {1, 40}, zeros),
        state1(*named.backend, {1, 40}, zeros), weight(*named.backend, {1, 40}, zeros);
    const float* grads[] = {nothing.floats()};
    float* weights[] = {weight.floats()};
    const ParameterRange all{0, 40, 0.1F};
    named.backend->optimizer().optimizer_update({.grads = grads,
                                                 .weights = weights,
                                                 .state = {state0.floats(), state1.floats()},
                                                 .ranges = {&all, 1},
                                                 .lr = 0.1F,
                                                 .optimizer = AdamW{}});
    CHECK(weight.get() == zeros);
  }
}

TEST_CASE("the squared norm of a shard's gradient is added, whatever its range and alignment") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const std::int64_t base : {0, 1}) {
      CAPTURE(base);
      for (const UpdateCase& c : std::initializer_list<UpdateCase>{
               {40, 1, 1, 2, 0.1F, sgd(0.9F), 0, base},
               {40, 3, 7, 33, 0.1F, sgd(0.9F), 1e-2F, base},
               {40, 2, 13, 13, 0.1F, sgd(0.9F), 0, base},
               {9000, 4, 3, 8990, 0.05F, sgd(0), 0.1F, base},
               {70001, 2, 1, 70001, 0.05F, sgd(0), 0.1F, base},
               {9000, 4, 3, 8990, 0.05F, adamw(3), 0.1F, base},
           }) {
        CAPTURE(c.elements);
        const Replicas replicas(*named.backend, c), others(*named.backend, c);
        const DeviceNumber<double> squared_norm(*named.backend, 7.0);
        named.backend->optimizer().optimizer_update(replicas.shard(c, squared_norm.pointer()));
        const double expected = 7 + replicas.squared_norm(c);
        CHECK(squared_norm.get() == doctest::Approx(expected).epsilon(1e-13));
        // It changes no bit of the rest, and null is not written to.
        named.backend->optimizer().optimizer_update(others.shard(c));
        CHECK(replicas.weights(c.ranks - 1) == others.weights(c.ranks - 1));
        CHECK(replicas.state() == others.state());
      }
    }
  }
}

TEST_CASE("a gradient is clipped by the norm of all ranks' squares, and then by value") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const UpdateCase c{1200, 3, 3, 1190, 0.05F, sgd(0.9F), 1e-2F};
    const Replicas replicas(*named.backend, c), whole(*named.backend, c);
    const Storage squares = named.backend->allocate(3 * sizeof(double));
    auto* const blocks = static_cast<double*>(squares.data());
    const DeviceNumber<float> factor(*named.backend, 7.0F);
    OptimizerShard shard = replicas.shard(c);
    named.backend->optimizer().gradient_squares(shard, blocks);
    const double norm = std::sqrt(replicas.squared_norm(c));
    const auto factor_of = [&](const std::vector<GradientSquares>& ranks, double most) {
      named.backend->optimizer().clip_factor({ranks, static_cast<float>(most), factor.pointer()});
      return factor.get();
    };
    CHECK(factor_of({{blocks, 0, 3}}, norm / 2) == doctest::Approx(0.5).epsilon(1e-6));
    CHECK(factor_of({{blocks, 0, 3}}, 2 * norm) == 1);
    const float by_one = factor_of({{blocks, 0, 3}}, norm / 2);
    CHECK(factor_of({{blocks, 0, 1}, {nullptr, 1, 0}, {blocks + 1, 1, 2}}, norm / 2) == by_one);
    // As if each rank had the clipped gradient, up to its rounding.
    shard.clip = {0.0F, factor.pointer()};
    shard.most = 0.5F;
    named.backend->optimizer().optimizer_update(shard);
    const Values old = whole.weights(0), state = whole.state()[0];
    std::vector<double> expected = widen(old);
    for (std::int64_t i = c.begin; i < c.end; ++i) {
      float sum = 0;
      for (std::size_t rank = 0; rank < c.ranks; ++rank) sum += whole.grads(rank)[i];
      const double grad = std::clamp(static_cast<double>(sum) * 0.5, -0.5, 0.5);
      Element element{old[i], {state[i], 0}};
      element.update(Sgd{.momentum = 0.9F}, 1, grad, c.lr, c.weight_decay);
      expected[i] = element.weight;
    }
    CHECK(relative_error(replicas.weights(0), expected) < 1e-6);
  }
}

TEST_CASE("what is no number is not clipped to one") {
  const Shape shape{1, 37};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Values values(37, 1.0F);
    values[5] = std::numeric_limits<float>::quiet_NaN();
    const Values zeros(37, 0.0F);
    const Operand grad(*named.backend, shape, values), weight(*named.backend, shape, zeros),
        velocity(*named.backend, shape, zeros);
    const float* grads[] = {grad.floats()};
    float* weights[] = {weight.floats()};
    const ParameterRange all{0, 37, 0};
    const DeviceNumber<double> squares(*named.backend, 0.0);
    const DeviceNumber<float> factor(*named.backend, 7.0F);
    const OptimizerShard shard{.grads = grads,
                               .weights = weights,
                               .state = {velocity.floats()},
                               .ranges = {&all, 1},
                               .lr = 1.0F,
                               .most = 0.5F};
    named.backend->optimizer().gradient_squares(shard, squares.pointer());
    const GradientSquares of_all{squares.pointer(), 0, 1};
    named.backend->optimizer().clip_factor({{&of_all, 1}, 1.0F, factor.pointer()});
    CHECK(std::isnan(factor.get()));
    named.backend->optimizer().optimizer_update(shard);
    CHECK(std::isnan(weight.get()[5]));
    CHECK(weight.get()[6] == -0.5F);
  }
}

TEST_CASE("an average of weights begins with them, follows, and leaves bad losses out") {
  const Shape shape{1, 700};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Values first = random_values(shape, 1), second = random_values(shape, 2);
    Operand weight(*named.backend, shape, first);
    const Operand average(*named.backend, shape);
    const DeviceNumber<double> loss(*named.backend, 1.0);
    const double* losses[] = {loss.pointer()};
    const auto follow = [&](std::int64_t update) {
      named.backend->optimizer().average_weights({.weights = weight.floats(),
                                                  .average = average.floats(),
                                                  .elements = shape.elements(),
                                                  .share = 0.25F,
                                                  .updates = {.begun = update},
                                                  .losses = losses});
      return average.get();
    };
    CHECK(follow(1) == first);
    weight.set(second);
    const Values moved = follow(2);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      CHECK(moved[i] == std::fma(0.25F, second[i] - first[i], first[i]));
    }
    const DeviceNumber<double> bad(*named.backend, std::numeric_limits<double>::quiet_NaN());
    losses[0] = bad.pointer();
    CHECK(follow(3) == moved);
  }
}

TEST_CASE("the squared norm is finite where the gradient is") {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const Shape shape{1, 37};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Values large(37, kLargest / 2);
    Operand grad(*named.backend, shape, large);
    const Operand weight(*named.backend, shape), velocity(*named.backend, shape);
    const float* grads[] = {grad.floats(), grad.floats()};
    float* weights[] = {weight.floats(), weight.floats()};
    DeviceNumber<double> squared_norm(*named.backend, 0.0);
    const ParameterRange all{0, 37, 0};
    const OptimizerShard shard{.grads = grads,
                               .weights = weights,
                               .state = {velocity.floats()},
                               .ranges = {&all, 1},
                               .squared_norm = squared_norm.pointer()};
    named.backend->optimizer().optimizer_update(shard);
    const double expected = std::sqrt(37.0) * static_cast<double>(kLargest);
    CHECK(std::sqrt(squared_norm.get()) == doctest::Approx(expected).epsilon(1e-6));
    for (const float bad : {kLargest, std::numeric_limits<float>::quiet_NaN()}) {
      large[36] = bad;  // the sum of two is infinite
      grad.set(large);
      squared_norm.set(0.0);
      named.backend->optimizer().optimizer_update(shard);
      CHECK_FALSE(std::isfinite(squared_norm.get()));
    }
  }
}

TEST_CASE(
    "many ranges at once are as one after the other, each with its weight decay and multiplier") {
  std::vector<ParameterRange> ranges;
  std::int64_t next = 1;
  for (int i = 0; i < 150; ++i) {  // of every alignment, some empty, one of several chunks
    const std::int64_t size = i == 70 ? 9001 : i * 7 % 23;
    ranges.push_back(
        {next, next + size, 0.01F * static_cast<float>(i % 5), static_cast<float>(i % 7)});
    next += size + i % 3;
  }
  const UpdateCase c{next + 3, 3, 1, next, 0.05F, adamw(2), 0};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Replicas at_once(*named.backend, c), one_by_one(*named.backend, c);
    const DeviceNumber<double> norm(*named.backend, 7.0), sum(*named.backend, 7.0);
    OptimizerShard shard = at_once.shard(c, norm.pointer());
    shard.ranges = ranges;
    named.backend->optimizer().optimizer_update(shard);
    for (const ParameterRange& range : ranges) {
      shard = one_by_one.shard(c, sum.pointer());
      shard.ranges = {&range, 1};
      named.backend->optimizer().optimizer_update(shard);
    }
    CHECK(at_once.state() == one_by_one.state());
    for (std::size_t rank = 0; rank < c.ranks; ++rank) {
      CHECK(at_once.weights(rank) == one_by_one.weights(rank));
    }
    CHECK(norm.get() == doctest::Approx(sum.get()).epsilon(1e-13));
  }
}

TEST_CASE("the optimizer refuses ranks that do not match") {
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  CHECK_THROWS_AS(backend->optimizer().optimizer_update({}), Error);
}

}  // namespace lockstep::test
