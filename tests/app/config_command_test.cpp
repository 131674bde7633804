// lockstep config and lockstep plan, from outside.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "app/process.h"
#include "app/tiny_config.h"
#include "config/config.h"
#include "config/config_schema.h"
#include "support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::contains;
using test::Outcome;
using test::run_lockstep;

const std::string kTiny = test::tiny_config("max_iters = 2\n");

TEST_CASE("config show says who says what; diff names what differs and whether results do") {
  const test::TemporaryFolder folder;
  const std::string a = folder.write("a.toml", kTiny).string();
  const std::string b = folder.write("b.toml", kTiny + "[bn]\nmode = \"sync\"\n").string();
  const Outcome shown = run_lockstep({"config", "show", a, "-s", "optim.lr=0.25"});
  CHECK(shown.exit_code == 0);
  CHECK(contains(shown.out, "a.toml:2:13"));
  CHECK(contains(shown.out, "-s optim.lr=0.25"));
  CHECK(contains(shown.out, "mode = \"local\""));
  const Outcome json = run_lockstep({"config", "show", a, "--json"});
  CHECK(Json::parse(json.out)[0]["key"] == "run.name");
  // A default that says nothing beside the others is a value, too.
  CHECK(contains(shown.out, "eval_own = true" + std::string(31, ' ') + "# default"));
  const Outcome own = run_lockstep({"config", "diff", a, a, "-s", "run.eval_own=false"});
  CHECK(own.out.empty());
  fs::create_directory(folder.path() / "c");
  const std::string without =
      folder.write("c/a.toml", test::tiny_config("max_iters = 2\neval_own = false\n")).string();
  CHECK(run_lockstep({"config", "diff", a, without}).out ==
        "run.eval_own: true -> false  (results are the same)\n");
  const Outcome differ = run_lockstep({"config", "diff", a, b});
  CHECK(contains(differ.out, "bn.mode: \"local\" -> \"sync\"\n"));
  CHECK(contains(differ.out, "run.name: \"a\" -> \"b\"  (results are the same)"));
  CHECK(run_lockstep({"config", "diff", a, a}).out.empty());
  CHECK(run_lockstep({"config", "diff", a}).exit_code == 2);
  CHECK(run_lockstep({"config", "sho", a}).exit_code == 2);
}

TEST_CASE("config init begins a configuration of every layout that can be read") {
  const test::TemporaryFolder folder;
  for (const DataLayout& layout : builtin_layouts()) {
    CAPTURE(layout.name);
    const Outcome begun = run_lockstep({"config", "init", layout.name});
    CHECK(begun.exit_code == 0);
    const fs::path file = folder.write("init.toml", begun.out);
    std::vector<std::string> overrides;
    if (layout.find_classes)
      overrides.push_back("data.num_classes=3");  // its folders are not there
    const Config config = load_config(file, overrides);
    CHECK(config.data.layout == layout.name);
    CHECK(config.bn.mode == BatchNormMode::kSync);
  }
}

TEST_CASE("config schema knows every key that config show does") {
  const test::TemporaryFolder folder;
  const fs::path file = folder.write("a.toml", kTiny);
  const Json schema = Json::parse(run_lockstep({"config", "schema"}).out);
  for (const ConfigValue& value : explain_config(file, {})) {
    CAPTURE(value.key);
    const Json* at = &schema;
    std::string rest = value.key;
    for (std::size_t dot = 0; dot != std::string::npos; rest = rest.substr(dot + 1)) {
      dot = rest.find('.');
      if (at->contains("anyOf")) at = &at->at("anyOf").at(0);  // a section, or a list of them
      at = &at->at("properties").at(rest.substr(0, dot));
      if (dot == std::string::npos) break;
    }
    CHECK(at->is_object());
  }
  // A number, or a word in its place.
  const Json& momentum = schema["properties"]["bn"]["properties"]["momentum"];
  CHECK(momentum["anyOf"][0]["type"] == "number");
  CHECK(momentum["anyOf"][1]["enum"][0] == "cumulative");
  for (const ConfigKey& key : config_keys()) {
    if (key.expects.find("number") == std::string::npos || key.words.empty()) continue;
    const std::size_t dot = key.path.find('.');
    CAPTURE(key.path);
    CHECK(schema["properties"][key.path.substr(0, dot)]["properties"][key.path.substr(dot + 1)]
              .contains("anyOf"));
  }
}

TEST_CASE("config schema and diff know a list of losses") {
  const Json schema = Json::parse(run_lockstep({"config", "schema"}).out);
  const Json& ways = schema.at("properties").at("loss").at("anyOf");
  CHECK(ways.at(1).at("type") == "array");
  CHECK(ways.at(1).at("items") == ways.at(0));
  CHECK(ways.at(0).at("properties").at("type").at("enum").size() == 4);

  const test::TemporaryFolder folder;
  const std::string one = folder.write("a.toml", kTiny).string();
  const std::string two =
      folder.write("b.toml", std::string("loss = [{}, {type = 'dice'}]\n") + kTiny).string();
  const Outcome diff = run_lockstep({"config", "diff", one, two});
  CHECK(contains(diff.out, "loss[1].type: not set -> \"dice\""));
  const Outcome show = run_lockstep({"config", "show", two});
  CHECK(contains(show.out, "[[loss]]\ntype = \"dice\""));
}

TEST_CASE("plan prints what a training will take, and as JSON") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("a.toml", kTiny).string();
  const std::vector<std::string> arguments{"plan", config, "-d", "cpu:2", "-s", "bn.mode=sync"};
  const Outcome text = run_lockstep(arguments);
  CHECK(text.exit_code == 0);
  for (const char* part :
       {"2 steps per epoch", "BatchNorm at", "memory per device", "the whole training"})
    CHECK(contains(text.out, part));
  std::vector<std::string> more = arguments;
  more.insert(more.end(), {"--json", "--max-batch", "--memory", "0.1"});
  const Json json = Json::parse(run_lockstep(more).out);
  CHECK(json["steps"] == 2);
  CHECK(json["largest_batch"].get<int>() % 2 == 0);
  more = arguments;
  more.insert(more.end(), {"--max-batch", "--memory", "0.1"});
  CHECK(contains(run_lockstep(more).out, "; the data have images for 8\n"));
  more.insert(more.end(), {"-s", "batch.drop_last=false"});
  CHECK_FALSE(contains(run_lockstep(more).out, "the data have images for"));
  CHECK(json["exchanges_per_step"].get<int>() > 0);
  CHECK(run_lockstep({"plan", config, "--steps", "0"}).exit_code == 2);
}

TEST_CASE("plan lists the network's layers, whose parameters add up to all of them") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("a.toml", kTiny).string();
  const std::vector<std::string> arguments{"plan", config, "-d", "cpu:2", "--steps", "1"};
  CHECK_FALSE(contains(run_lockstep(arguments).out, "encoder.0.0.conv"));
  std::vector<std::string> more = arguments;
  more.emplace_back("--layers");
  const Outcome text = run_lockstep(more);
  CHECK(text.exit_code == 0);
  for (const char* part : {"| encoder.0.0.conv", " Conv2d | [2, ", "the network of cpu:0"}) {
    CHECK(contains(text.out, part));
  }
  more.emplace_back("--json");
  const Json json = Json::parse(run_lockstep(more).out);
  std::int64_t parameters = 0;
  for (const Json& layer : json["layers"]) {
    parameters += layer["parameters"].get<std::int64_t>();
    std::size_t bytes = sizeof(float);
    for (const Json& extent : layer["output"]) bytes *= extent.get<std::size_t>();
    CHECK(layer["output_bytes"] == bytes);
  }
  CHECK(json["parameters"] == parameters);
  CHECK(json["layers"].front()["name"] == "encoder.0.0.conv");
  CHECK(json["layers"].front()["kind"] == "Conv2d");
  CHECK(json["network_bytes"].get<std::size_t>() > 0);
}

}  // namespace
}  // namespace lockstep
