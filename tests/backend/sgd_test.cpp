// The optimizer step of a shard against PyTorch's SGD in double, and its gradient's norm.

#include <doctest/doctest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "backend/device_number.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

struct SgdCase {
  std::int64_t elements;
  std::size_t ranks;
  std::int64_t begin, end;
  float lr, momentum, weight_decay;
  std::int64_t base = 0;  // the element that pointers point to; no multiple of 4: off 16 bytes
};

// Weights, velocity and per-rank gradients on a device; weights start equal on all ranks.
class SgdReplicas {
 public:
  SgdReplicas(Backend& backend, const SgdCase& c)
      : range_{c.begin - c.base, c.end - c.base, c.weight_decay},
        velocity_(backend, {1, c.elements}, random_values({1, c.elements}, 3)) {
    for (std::size_t rank = 0; rank < c.ranks; ++rank) {
      const auto seed = static_cast<std::uint32_t>(10 + rank);
      grads_.emplace_back(backend, Shape{1, c.elements}, random_values({1, c.elements}, seed));
      weights_.emplace_back(backend, Shape{1, c.elements}, random_values({1, c.elements}, 2));
      grad_pointers_.push_back(grads_.back().floats() + c.base);
      weight_pointers_.push_back(weights_.back().floats() + c.base);
    }
  }

  SgdShard shard(const SgdCase& c, double* squared_norm = nullptr) const {
    return {.grads = grad_pointers_,
            .weights = weight_pointers_,
            .velocity = velocity_.floats() + c.base,
            .ranges = {&range_, 1},
            .lr = c.lr,
            .momentum = c.momentum,
            .squared_norm = squared_norm};
  }
  Values weights(std::size_t rank) const { return weights_[rank].get(); }
  Values grads(std::size_t rank) const { return grads_[rank].get(); }
  Values velocity() const { return velocity_.get(); }
  /// In double, of the sums over the ranks in fp32.
  double squared_norm(const SgdCase& c) const {
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
  Operand velocity_;
  std::deque<Operand> grads_, weights_;
  std::vector<const float*> grad_pointers_;
  std::vector<float*> weight_pointers_;
};

void check_step(Backend& backend, const SgdCase& c) {
  const SgdReplicas replicas(backend, c);
  const Values weight = replicas.weights(0), velocity = replicas.velocity();
  backend.sgd_update(replicas.shard(c));
  std::vector<double> expected_weight = widen(weight), expected_velocity = widen(velocity);
  for (std::int64_t i = c.begin; i < c.end; ++i) {
    double grad = 0;
    for (std::size_t rank = 0; rank < c.ranks; ++rank) grad += replicas.grads(rank)[i];
    expected_velocity[i] = c.momentum * expected_velocity[i] + grad + c.weight_decay * weight[i];
    expected_weight[i] -= c.lr * expected_velocity[i];
  }
  CHECK(relative_error(replicas.velocity(), expected_velocity) < 1e-6);
  for (std::size_t rank = 0; rank < c.ranks; ++rank) {
    CHECK(relative_error(replicas.weights(rank), expected_weight) < 1e-6);
    CHECK(replicas.weights(rank) == replicas.weights(0));
  }
  for (std::int64_t i = 0; i < c.elements; ++i) {
    if (i >= c.begin && i < c.end) continue;
    CHECK(replicas.weights(c.ranks - 1)[i] == weight[i]);
    CHECK(replicas.velocity()[i] == velocity[i]);
  }
}

}  // namespace

TEST_CASE("SGD sums the ranks, updates its range and writes it to every rank") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    check_step(*named.backend, {40, 1, 0, 40, 0.1F, 0.9F, 1e-2F});
    check_step(*named.backend, {40, 3, 7, 33, 0.1F, 0.9F, 1e-2F});
    check_step(*named.backend, {40, 2, 13, 13, 0.1F, 0.9F, 0});
    check_step(*named.backend, {1200, 4, 3, 1190, 0.05F, 0, 0.1F});
  }
}

TEST_CASE("a large shard has the same bits with any number of threads") {
  const SgdCase c{50001, 3, 1, 50000, 0.01F, 0.9F, 1e-4F};
  const auto one = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  const auto three = make_backend({DeviceKind::kCpu, 0, 0}, 3);
  const SgdReplicas a(*one, c), b(*three, c);
  const DeviceNumber<double> norm_of_a(*one, 0.0), norm_of_b(*three, 0.0);
  one->sgd_update(a.shard(c, norm_of_a.pointer()));
  three->sgd_update(b.shard(c, norm_of_b.pointer()));
  CHECK(norm_of_a.get() == norm_of_b.get());
  CHECK(a.weights(2) == b.weights(2));
  CHECK(a.velocity() == b.velocity());
}

TEST_CASE("the squared norm of a shard's gradient is added, whatever its range and alignment") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const std::int64_t base : {0, 1}) {
      CAPTURE(base);
      for (const SgdCase& c : std::initializer_list<SgdCase>{
               {40, 1, 1, 2, 0.1F, 0.9F, 0, base},
               {40, 3, 7, 33, 0.1F, 0.9F, 1e-2F, base},
               {40, 2, 13, 13, 0.1F, 0.9F, 0, base},
               {9000, 4, 3, 8990, 0.05F, 0, 0.1F, base},
               {70001, 2, 1, 70001, 0.05F, 0, 0.1F, base},
           }) {
        CAPTURE(c.elements);
        const SgdReplicas replicas(*named.backend, c), others(*named.backend, c);
        const DeviceNumber<double> squared_norm(*named.backend, 7.0);
        named.backend->sgd_update(replicas.shard(c, squared_norm.pointer()));
        const double expected = 7 + replicas.squared_norm(c);
        CHECK(squared_norm.get() == doctest::Approx(expected).epsilon(1e-13));
        // It changes no bit of the rest, and null is not written to.
        named.backend->sgd_update(others.shard(c));
        CHECK(replicas.weights(c.ranks - 1) == others.weights(c.ranks - 1));
        CHECK(replicas.velocity() == others.velocity());
      }
    }
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
    const SgdShard shard{.grads = grads,
                         .weights = weights,
                         .velocity = velocity.floats(),
                         .ranges = {&all, 1},
                         .squared_norm = squared_norm.pointer()};
    named.backend->sgd_update(shard);
    const double expected = std::sqrt(37.0) * static_cast<double>(kLargest);
    CHECK(std::sqrt(squared_norm.get()) == doctest::Approx(expected).epsilon(1e-6));
    for (const float bad : {kLargest, std::numeric_limits<float>::quiet_NaN()}) {
      large[36] = bad;  // the sum of two is infinite
      grad.set(large);
      squared_norm.set(0.0);
      named.backend->sgd_update(shard);
      CHECK_FALSE(std::isfinite(squared_norm.get()));
    }
  }
}

TEST_CASE("many ranges at once are as one after the other, each with its weight decay") {
  std::vector<ParameterRange> ranges;
  std::int64_t next = 1;
  for (int i = 0; i < 150; ++i) {  // of every alignment, some empty, one of several chunks
    const std::int64_t size = i == 70 ? 9001 : i * 7 % 23;
    ranges.push_back({next, next + size, 0.01F * static_cast<float>(i % 5)});
    next += size + i % 3;
  }
  const SgdCase c{next + 3, 3, 1, next, 0.05F, 0.9F, 0};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const SgdReplicas at_once(*named.backend, c), one_by_one(*named.backend, c);
    const DeviceNumber<double> norm(*named.backend, 7.0), sum(*named.backend, 7.0);
    SgdShard shard = at_once.shard(c, norm.pointer());
    shard.ranges = ranges;
    named.backend->sgd_update(shard);
    for (const ParameterRange& range : ranges) {
      shard = one_by_one.shard(c, sum.pointer());
      shard.ranges = {&range, 1};
      named.backend->sgd_update(shard);
    }
    CHECK(at_once.velocity() == one_by_one.velocity());
    for (std::size_t rank = 0; rank < c.ranks; ++rank) {
      CHECK(at_once.weights(rank) == one_by_one.weights(rank));
    }
    CHECK(norm.get() == doctest::Approx(sum.get()).epsilon(1e-13));
  }
}

TEST_CASE("SGD refuses ranks that do not match") {
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  CHECK_THROWS_AS(backend->sgd_update({}), Error);
}

}  // namespace lockstep::test
