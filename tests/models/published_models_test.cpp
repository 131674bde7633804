// The documents' cases that need a whole network of theirs.

#include <doctest/doctest.h>

#include "backend/operand.h"
#include "lockstep/nn/models.h"

namespace lockstep::test {
namespace {

/// Logits of a pass in training.
Values logits_of(Network& network, Backend& backend, const Values& images) {
  backend.upload(network.input(), images.data());
  network.forward({.update_running_stats = false});
  const Tensor& output = network.output();
  Values logits(static_cast<std::size_t>(output.shape.elements()));
  backend.download(logits.data(), output);
  backend.synchronize();
  return logits;
}

}  // namespace

TEST_CASE("published, virtual devices: ResNet-50 on 8 images is 8 devices with an image each") {
  const auto backend = make_backend(Device{}, 2);
  ParameterStore store;
  const Model model = resnet(resnet_options("resnet50"), 1000);
  const Shape batch{8, 96, 96, 3}, image = batch.with_batch(1);
  const auto together = build_network(model, GhostBatchNorm(8), batch, {}, *backend, store);
  initialize_parameters(store, *backend, 1);
  const Values images = random_values(batch, 2);
  const Values logits = logits_of(*together, *backend, images);
  REQUIRE(together->output().shape == Shape{8, 1000});

  const auto alone = build_network(model, BatchNorm2d(), image, {}, *backend, store);
  for (std::int64_t n = 0; n < 8; ++n) {
    const auto begin = images.begin() + n * image.elements();
    const Values own = logits_of(*alone, *backend, {begin, begin + image.elements()});
    CHECK((own == Values(logits.begin() + n * 1000, logits.begin() + (n + 1) * 1000)));
  }
}

}  // namespace lockstep::test
