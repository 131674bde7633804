// bn.sync_layers: some layers synchronize, the others are local.

#include <doctest/doctest.h>

#include "lockstep/core/check.h"
#include "train/plan.h"
#include "train/runs.h"

namespace lockstep {
namespace {

using test::Runs;

bool is_of_first_stage(const std::string& layer) { return layer.rfind("encoder.0.", 0) == 0; }

}  // namespace

TEST_CASE("patterns that stand for every layer are synchronized BatchNorm, to the byte") {
  const Runs runs;
  train(runs.request("a", {"bn.mode=sync"}));
  train(runs.request("b", {"bn.mode=sync", "bn.sync_layers=[\"encoder.*\", \"decoder.?.*\"]"}));
  const RunFolder a = runs.folder("a"), b = runs.folder("b");
  CHECK(test::read_text(a.scalars()) == test::read_text(b.scalars()));
  CHECK(test::read_text(a.checkpoint("last")) == test::read_text(b.checkpoint("last")));
  CHECK(load_checkpoint(a.checkpoint("last")).state.optimizer ==
        load_checkpoint(b.checkpoint("last")).state.optimizer);
}

TEST_CASE("layers that no pattern stands for are local: each device has its own statistics") {
  const Runs runs;
  train(runs.request("a", {"bn.mode=sync", "bn.sync_layers=[\"encoder.0.*\"]"}));
  const auto replicas = load_checkpoint(runs.folder("a").checkpoint("last")).state.replicas;
  REQUIRE(replicas.size() == 4);
  int shared = 0, own = 0;
  for (std::size_t layer = 0; layer < replicas[0].size(); ++layer) {
    CAPTURE(replicas[0][layer].layer);
    const bool same = replicas[0][layer].mean == replicas[1][layer].mean;
    CHECK(same == is_of_first_stage(replicas[0][layer].layer));
    ++(same ? shared : own);
  }
  CHECK(shared == 2);
  CHECK(own == 4);
  CHECK(load_config(runs.folder("a").config(), {}).bn.sync_layers ==
        std::vector<std::string>{"encoder.0.*"});
}

TEST_CASE("only the layers that synchronize meet") {
  const Runs runs;
  const auto plan_of = [&](const std::string& layers) {
    return plan_training(runs.request("a", {"bn.mode=sync", "bn.sync_layers=" + layers}).config,
                         parse_devices("cpu:2"), 1);
  };
  const TrainingPlan all = plan_of("[]"), first = plan_of("[\"encoder.0.*\"]");
  CHECK(all.exchanges == 2 * 6);
  CHECK(first.exchanges == 2 * 2);
  CHECK(first.exchanged_bytes < all.exchanged_bytes);
  CHECK(first.exchanged_bytes > 0);
}

TEST_CASE("a run with local layers does not go on with other devices") {
  const Runs runs;
  TrainRequest request = runs.request("a", {"bn.mode=sync", "bn.sync_layers=[\"encoder.0.*\"]"});
  train(request);
  request.devices = "cpu:2";
  request.resume = "auto";
  CHECK_THROWS_AS(train(request), ConfigError);
}

TEST_CASE("a pattern that stands for no layer is refused, and the layers are named") {
  const Runs runs;
  CHECK_THROWS_WITH_AS(
      train(runs.request("a", {"bn.mode=sync", "bn.sync_layers=[\"encoder.9.*\"]"})),
      doctest::Contains("bn.sync_layers: \"encoder.9.*\" stands for no BatchNorm layer of the "
                        "model, which has encoder.0.0.bn, "),
      ConfigError);
}

TEST_CASE("patterns mean nothing where nothing synchronizes, and a warning says so") {
  const test::TemporaryFolder folder;
  std::vector<std::string> warnings;
  load_config(folder.write("tiny.toml", test::kConfig), {"bn.sync_layers=[\"encoder.*\"]"},
              &warnings);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("bn.sync_layers means nothing with bn.mode = \"local\"") !=
        std::string::npos);
}

}  // namespace lockstep
