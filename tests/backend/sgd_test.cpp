// The optimizer step of a shard against PyTorch's SGD in double.

#include <doctest/doctest.h>

#include <deque>

#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

struct SgdCase {
  std::int64_t elements;
  std::size_t ranks;
  std::int64_t begin, end;
  float lr, momentum, weight_decay;
};

// Weights, velocity and per-rank gradients on a device; weights start equal on all ranks.
class SgdReplicas {
 public:
  SgdReplicas(Backend& backend, const SgdCase& c)
      : velocity_(backend, {1, c.elements}, random_values({1, c.elements}, 3)) {
    for (std::size_t rank = 0; rank < c.ranks; ++rank) {
      const auto seed = static_cast<std::uint32_t>(10 + rank);
      grads_.emplace_back(backend, Shape{1, c.elements}, random_values({1, c.elements}, seed));
      weights_.emplace_back(backend, Shape{1, c.elements}, random_values({1, c.elements}, 2));
      grad_pointers_.push_back(grads_.back().floats());
      weight_pointers_.push_back(weights_.back().floats());
    }
  }

  SgdShard shard(const SgdCase& c) const {
    return {grad_pointers_, weight_pointers_, velocity_.floats(), c.begin, c.end,
            c.lr,           c.momentum,       c.weight_decay,     {}};
  }
  Values weights(std::size_t rank) const { return weights_[rank].get(); }
  Values grads(std::size_t rank) const { return grads_[rank].get(); }
  Values velocity() const { return velocity_.get(); }

 private:
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
  one->sgd_update(a.shard(c));
  three->sgd_update(b.shard(c));
  CHECK(a.weights(2) == b.weights(2));
  CHECK(a.velocity() == b.velocity());
}

TEST_CASE("SGD refuses ranks that do not match") {
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  CHECK_THROWS_AS(backend->sgd_update({}), Error);
}

}  // namespace lockstep::test
