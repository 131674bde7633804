// Training that must not depend on placement, on several GPUs of the fake runtime: what peers that
// cannot be reached are copied, what cuDNN is asked for, and what is refused.

#include <doctest/doctest.h>

#include "cuda/fake_runtime.h"
#include "cuda/tiny_run.h"
#include "kernels/dispatch.h"
#include "lockstep/core/check.h"
#include "step/placed_training.h"

namespace lockstep::test {
namespace {

DataParallelOptions placed_on_gpus(int ranks, int gpus) {
  DataParallelOptions options = placed_options(ranks, Sgd{.weight_decay = 1e-3F});
  for (int rank = 0; rank < ranks; ++rank) {
    options.devices[static_cast<std::size_t>(rank)] = {DeviceKind::kCuda, rank % gpus, rank / gpus};
  }
  options.placement_invariant = true;
  return options;
}

TEST_CASE("placement: the same bits on several GPUs, with and without peer access") {
  fake_runtime::use({.devices = 1});
  const Placed whole = trained_in_steps(placed_on_gpus(1, 1));
  for (const bool peer_access : {true, false}) {
    CAPTURE(peer_access);
    fake_runtime::use({.devices = 2, .peer_access = peer_access});
    for (const int ranks : {2, 3, 11}) {  // 11: more than a batch has images
      CAPTURE(ranks);
      CHECK((trained_in_steps(placed_on_gpus(ranks, 2)) == whole));
    }
  }
}

TEST_CASE("placement: hard pixels are those of the batch on several GPUs") {
  const auto hard = [](int ranks, int gpus) {
    DataParallelOptions options = placed_on_gpus(ranks, gpus);
    options.losses[0] = {"out", OhemCrossEntropyLoss{.thresh = 0.3F, .min_kept = 40}};
    return options;
  };
  fake_runtime::use({.devices = 1});
  const Placed whole = trained_in_steps(hard(1, 1));
  CHECK_FALSE((trained_in_steps(placed_on_gpus(1, 1)) == whole));
  fake_runtime::use({.devices = 2});
  for (const int ranks : {2, 3, 11}) CHECK((trained_in_steps(hard(ranks, 2)) == whole));
}

TEST_CASE("placement: a gradient hook on replicas of one GPU; several are refused") {
  const auto hooked = [](int ranks, int gpus) {
    DataParallelOptions options = placed_on_gpus(ranks, gpus);
    options.on_gradients = [](std::span<const NamedGradient> gradients) {
      for (const NamedGradient& gradient : gradients) {
        for (float& value : gradient.values) value = 0.5F * value + 0.001F;
      }
    };
    return options;
  };
  fake_runtime::use({.devices = 2});
  const Placed whole = trained_in_steps(hooked(1, 1));
  CHECK_FALSE((trained_in_steps(placed_on_gpus(1, 1)) == whole));
  CHECK((trained_in_steps(hooked(3, 1)) == whole));
  CHECK_THROWS_WITH_AS(DataParallel(hooked(3, 2)), doctest::Contains("these are several GPUs"),
                       ConfigError);
}

// More weights than gradients are brought within reach, in the first step already.
TEST_CASE("placement: fewer images than replicas that do not reach each other") {
  const auto trained_on = [](int ranks, int gpus) {
    DataParallel run(placed_on_gpus(ranks, gpus));
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 2; ++step) {
      losses.push_back(run.train_step(toy_batch(2, step), step, 0.05F).loss);
    }
    return outcome_of(run, losses);
  };
  fake_runtime::use({.devices = 1});
  const Outcome whole = trained_on(1, 1);
  fake_runtime::use({.devices = 2, .peer_access = false});
  CHECK((trained_on(11, 2) == whole));
}

TEST_CASE("placement: every convolution has the plan of one image, whatever the batch") {
  fake_runtime::use({.devices = 1});
  DataParallel run(placed_on_gpus(2, 1));
  train_steps(run);
  const std::vector<std::string> plans =
      run.replica(0).backend().convolutions().conv2d_algorithms();
  CHECK(plans.size() > 10);
  for (const std::string& plan : plans) {
    CAPTURE(plan);
    CHECK(plan.find("input [1, ") != std::string::npos);
  }
}

/// Of BatchNorm's sums and GroupNorm's passes of so many images.
std::int64_t launches_of_norms(Backend& backend, std::int64_t images) {
  constexpr std::int64_t kChannels = 6;
  const Shape shape{images, 5, 7, kChannels};
  const Storage memory = backend.allocate(static_cast<std::size_t>(4 * shape.elements()) * 4);
  auto* const floats = static_cast<float*>(memory.data());
  backend.fill(Tensor(floats, {4 * shape.elements(), 1}), 1);
  const Tensor x(floats, shape), grad_y(floats + shape.elements(), shape);
  const Tensor y(floats + 2 * shape.elements(), shape);
  float* const work = floats + 3 * shape.elements();  // [images, 4, C], then the other arrays
  float* const saved = work + images * 4 * kChannels;
  float* const grads = saved + images * 3 * kChannels;
  backend.synchronize();
  const std::int64_t before = emulation::launches();
  backend.norms().batch_norm_moments(x, work, images);
  backend.norms().batch_norm_backward_reduce({.x = x,
                                              .grad_y = grad_y,
                                              .y = {},
                                              .affine = {},
                                              .saved = {saved},
                                              .sums = work,
                                              .grad_weight = grads,
                                              .grad_bias = grads + kChannels,
                                              .parts = images});
  backend.norms().group_norm_forward(
      {.x = x, .residual = {}, .y = y, .affine = {}, .groups = 3, .saved = saved, .work = work});
  backend.norms().group_norm_backward({.x = x,
                                       .grad_y = grad_y,
                                       .y = {},
                                       .affine = {},
                                       .groups = 3,
                                       .saved = saved,
                                       .work = work,
                                       .grad_weight = grads,
                                       .grad_bias = grads + kChannels,
                                       .grad_x = grad_y,
                                       .grad_residual = {}});
  backend.synchronize();
  return emulation::launches() - before;
}

TEST_CASE("norms take all images of a batch in one set of launches") {
  fake_runtime::use({.devices = 1});
  DataParallel run(placed_on_gpus(1, 1));
  Backend& backend = run.replica(0).backend();
  constexpr int kMoments = 1, kReduce = 2, kForward = 2, kBackward = 3;
  for (const std::int64_t images : {2, 7}) {
    CHECK(launches_of_norms(backend, images) == kMoments + kReduce + kForward + kBackward);
  }
}

TEST_CASE("placement: gradients are summed by their owners where that is not chosen") {
  fake_runtime::use({.devices = 2, .peer_access = false});
  const DataParallel run(placed_on_gpus(2, 2));
  CHECK(run.gradient_exchange().kind == GradientExchangeKind::kOwner);
  CHECK(run.placement_obstacle().empty());
}

TEST_CASE("placement: what GPUs cannot add in one order is refused") {
  fake_runtime::use({.devices = 2});
  const auto refuses = [](const DataParallelOptions& options, const char* reason) {
    CHECK_THROWS_WITH_AS(DataParallel{options}, doctest::Contains(reason), ConfigError);
  };
  DataParallelOptions options = placed_on_gpus(2, 2);
  options.norm.options.mode = BatchNormMode::kLocal;
  refuses(options, "BatchNorm is not synchronized");
#if defined(LOCKSTEP_NCCL)
  options = placed_on_gpus(2, 2);
  options.gradient_exchange.kind = GradientExchangeKind::kAllReduce;
  refuses(options, "all_reduce, whose sums have an order of their own");
  options = placed_on_gpus(2, 2);
  options.communicator.transport = TransportKind::kNccl;
  refuses(options, "the transport is nccl");
#endif
  options = placed_on_gpus(2, 2);
  options.placement_invariant = false;
  CHECK(DataParallel(options).placement_obstacle() ==
        "GPUs keep sums image by image only where placement invariance is asked for");
}

TEST_CASE("placement: a run leaves the same files on any number of replicas of a GPU") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  const std::vector<std::string> keys{"bn.mode=sync", "run.placement_invariant=true"};
  for (const char* devices : {"cuda:0x1", "cuda:0x2", "cuda:0x4"}) {
    CAPTURE(devices);
    TrainRequest one = request(folder, devices, keys);
    one.devices = devices;
    train(one);
    const RunFolder whole{folder.path() / "cuda:0x1"}, own{folder.path() / devices};
    CHECK(read_text(own.scalars()) == read_text(whole.scalars()));
    CHECK(read_text(own.checkpoint("last")) == read_text(whole.checkpoint("last")));
  }
}

}  // namespace
}  // namespace lockstep::test
