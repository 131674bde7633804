// bn.sync_layers: some layers synchronize, the others are local, or in slices; "top:K" chooses
// them.

#include "train/diagnosis/sync_layers.h"

#include <doctest/doctest.h>

#include "lockstep/core/check.h"
#include "train/diagnosis/diagnosis.h"
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

TEST_CASE("slices with synchronized layers are devices with them, to the byte") {
  const Runs runs;
  const std::string layers = "bn.sync_layers=[\"encoder.0.*\", \"decoder.0.1.bn\"]";
  train(runs.request("devices", {"bn.mode=sync", "batch.global=8", layers}));
  const auto sliced = [&](const std::string& run, const std::string& devices, int slices,
                          const std::string& of) {
    TrainRequest request = runs.request(run, {"bn.mode=ghost", "batch.global=8", of,
                                              "bn.virtual_devices=" + std::to_string(slices)});
    request.devices = devices;
    train(request);
    return test::read_text(runs.folder(run).checkpoint("last"));
  };
  const std::string devices = test::read_text(runs.folder("devices").checkpoint("last"));
  CHECK(devices == sliced("one", "cpu:1", 4, layers));
  CHECK(devices == sliced("two", "cpu:2", 2, layers));
  CHECK(devices != sliced("none", "cpu:1", 4, "bn.sync_layers=[]"));
}

TEST_CASE("top:K stands for the layers that a diagnosis ranks first, and the run names them") {
  const Runs runs;
  const TrainRequest request = runs.request("a", {"bn.mode=sync", "bn.sync_layers=top:2"});
  const TrainSummary summary = train(with_sync_layers(request));
  const auto names = layers_apart(
      diagnose({.config = request.config, .device = "cpu:1", .images_per_device = {1}}), 2);
  CHECK(summary.cell.sync_top == 2);
  CHECK(summary.sync_layers == names);
  CHECK(load_config(runs.folder("a").config(), {}).bn.sync_layers == names);
  const std::optional<TrainSummary> read = read_summary(runs.folder("a").root);
  REQUIRE(read);
  CHECK(read->cell.sync_top == 2);
  CHECK(read->sync_layers == names);
}

TEST_CASE("top:K ranks by the weights that the training starts from") {
  const Runs runs;
  train(runs.request("trained", {"bn.mode=local"}));
  const std::filesystem::path weights = runs.folder("trained").checkpoint("last");
  const Config config = runs.request("a", {"bn.mode=sync", "bn.sync_layers=top:6"}).config;
  const auto trained = layers_apart(
      diagnose({.config = config, .weights = weights, .device = "cpu:1", .images_per_device = {1}}),
      6);
  REQUIRE(trained != rank_layers(config, "cpu:1"));
  CHECK(with_sync_layers(config, "cpu:1", weights).bn.sync_layers == trained);
}

TEST_CASE("what says no number of layers is left as it is") {
  const Runs runs;
  for (const char* layers : {"[]", "[\"encoder.*\"]"}) {
    const Config config =
        runs.request("a", {"bn.mode=sync", concat("bn.sync_layers=", layers)}).config;
    CHECK(with_sync_layers(config, "cpu:1").bn.sync_layers == config.bn.sync_layers);
  }
  const Config local = runs.request("a", {"bn.sync_layers=top:2"}).config;
  CHECK(with_sync_layers(local, "cpu:1").bn.sync_layers == std::vector<std::string>{"top:2"});
  const TrainSummary summary = train(with_sync_layers(runs.request("a", {"bn.sync_layers=top:2"})));
  CHECK(summary.cell.sync_top == 0);
  CHECK(summary.sync_layers.empty());
}

TEST_CASE("a number of layers that the network does not have is refused") {
  const Runs runs;
  CHECK_THROWS_WITH_AS(
      with_sync_layers(runs.request("a", {"bn.mode=sync", "bn.sync_layers=top:7"})),
      "bn.sync_layers = \"top:7\": the network has 6 layers that take statistics in training; "
      "choose a number from 1 to 6",
      ConfigError);
  CHECK_THROWS_WITH_AS(train(runs.request("a", {"bn.mode=sync", "bn.sync_layers=top:2"})),
                       doctest::Contains("bn.sync_layers: \"top:2\" stands for no BatchNorm layer"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(first_layers({}, 1, "--modes sync:top:1"),
                       doctest::Contains("--modes sync:top:1: no layer of this network"),
                       ConfigError);
  for (const char* text : {"top:0", "top:-1", "top:", "top:2x", "encoder.*"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(
        runs.request("a", {"bn.mode=sync", concat("bn.sync_layers=\"", text, "\"")}),
        doctest::Contains("expected a list of patterns of names, or \"top:K\", K >= 1, got"),
        ConfigError);
  }
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
