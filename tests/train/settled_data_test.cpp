#include "train/settled_data.h"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <vector>

#include "support/thread_world.h"

namespace lockstep {
namespace {

TEST_CASE("process 0 says how the images of all processes are normalised") {
  std::atomic<int> settled = 0;
  test::run_world(2, [&](World& world) {
    Config config;
    const std::string said = settle_by_first(config, world, [&] {
      ++settled;
      config.data.normalize = Normalization::kDataset;
      config.data.pixels = PixelType::kUint16;
      config.data.mean = {0.1F, 1234.5F};
      config.data.std = {1 / 3.0F, 2};
      return std::string("measured");
    });
    CHECK(said == "measured");
    CHECK(config.data.normalize == Normalization::kDataset);
    CHECK(config.data.pixels == PixelType::kUint16);
    CHECK(config.data.mean == std::vector<float>{0.1F, 1234.5F});
    CHECK(config.data.std == std::vector<float>{1 / 3.0F, 2});
  });
  CHECK(settled == 1);
}

TEST_CASE("process 0 says the balanced weights of all processes, and of all losses") {
  test::run_world(2, [](World& world) {
    Config config;
    config.losses.resize(2);
    ClassWeights balanced;
    balanced.balanced = true;
    config.losses[0].loss = FocalLoss{.alpha = balanced};
    config.losses[1].loss = CrossEntropyLoss{.class_weight = {3, 1}};
    settle_by_first(config, world, [&] {
      fill_balanced({0.5F, 1 / 3.0F}, config);
      return std::string();
    });
    const auto& measured = std::get<FocalLoss>(config.losses[0].loss).alpha;
    CHECK(measured == std::vector<float>{0.5F, 1 / 3.0F});
    CHECK(measured.balanced);
    CHECK(std::get<CrossEntropyLoss>(config.losses[1].loss).class_weight ==
          std::vector<float>{3, 1});
  });
}

TEST_CASE("what is not settled stays so in all processes") {
  test::run_world(2, [](World& world) {
    Config config;
    CHECK(settle_by_first(config, world, [] { return std::string(); }).empty());
    CHECK_FALSE(config.data.normalize);
    CHECK_FALSE(config.data.pixels);
    CHECK(config.data.mean == DataOptions().mean);
  });
}

}  // namespace
}  // namespace lockstep
