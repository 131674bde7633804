// lockstep diagnose as a user runs it: of a configuration, a run and weights; for people and for
// programs; what it refuses.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "app/process.h"
#include "app/tiny_config.h"
#include "support/check_contains.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::check_contains;
using test::Outcome;
using test::run_lockstep;

/// A configuration in a folder.
struct Place {
  test::TemporaryFolder folder;
  std::string config = folder.write("tiny.toml", test::tiny_config("max_iters = 2\n")).string();

  std::string at(const char* name) const { return (folder.path() / name).string(); }
};

Outcome diagnose(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "diagnose");
  return run_lockstep(arguments);
}

}  // namespace

TEST_CASE("diagnose: a verdict for every number of images, and where to read more") {
  const Place place;
  const Outcome outcome = diagnose(
      {place.config, "-d", "cpu:1", "--images-per-device", "1,2,4", "--layers", "--top", "1"});
  REQUIRE(outcome.exit_code == 0);
  check_contains(outcome.out, "8 training images of 32x32, initial weights");
  check_contains(outcome.out, "\n1 image per device: cannot tell (it misses ");
  check_contains(outcome.out, "\n2 images per device: cannot tell (they miss ");
  check_contains(outcome.out, "| encoder.0.0.bn");
  check_contains(outcome.out, "-s 'bn.sync_layers=[\"");
  check_contains(outcome.out, "lockstep docs diagnose");
}

TEST_CASE(
    "diagnose --json: layers, logits, loss and verdict by images per device; the same twice") {
  const Place place;
  const std::vector<std::string> arguments{place.config, "-d",     "cpu:1", "--images-per-device",
                                           "1,2",        "--json", "--top", "2"};
  const Outcome outcome = diagnose(arguments);
  REQUIRE(outcome.exit_code == 0);
  Json json = Json::parse(outcome.out);
  CHECK(json.at("images") == 8);
  CHECK(json.at("size") == Json({32, 32}));
  CHECK(json.at("shares_statistics") == true);
  CHECK(json.at("sync_layers").size() == 2);
  REQUIRE(json.at("by_images_per_device").size() == 2);
  const Json& one = json.at("by_images_per_device")[0];
  CHECK(one.at("images_per_device") == 1);
  CHECK(one.at("values") == 16 * 16);
  CHECK(one.at("layers").size() == 6);
  CHECK(one.at("layers")[0].at("missed").get<double>() > 0);
  CHECK(one.at("missed") >= one.at("layers")[0].at("missed"));
  CHECK(one.at("disparity").get<double>() ==
        one.at("loss").get<double>() - one.at("running_loss").get<double>());
  Json again = Json::parse(diagnose(arguments).out);
  json.erase("seconds");
  again.erase("seconds");
  CHECK(json == again);
}

TEST_CASE("diagnose: a small training set has no eight images per device, and a line says so") {
  const Place place;
  const Outcome outcome = diagnose({place.config, "-d", "cpu:1"});
  REQUIRE(outcome.exit_code == 0);
  check_contains(outcome.out, "left out: 8 images per device, which take two sets of as many\n");
  check_contains(outcome.out, "\n4 images per device: ");
  const Json json = Json::parse(diagnose({place.config, "-d", "cpu:1", "--json"}).out);
  CHECK(json.at("left_out") == Json{8});
  CHECK(json.at("by_images_per_device").size() == 3);
  const Outcome all = diagnose({place.config, "-d", "cpu:1", "--images-per-device", "1,2"});
  CHECK(all.out.find("left out") == std::string::npos);
}

TEST_CASE("diagnose: of a run, and of its weights with a configuration, the same figures") {
  const Place place;
  const std::string run = place.at("run");
  REQUIRE(run_lockstep({"train", place.config, "-d", "cpu:2", "-o", run}).exit_code == 0);
  const auto figures = [](const Outcome& outcome) {
    REQUIRE(outcome.exit_code == 0);
    return Json::parse(outcome.out).at("by_images_per_device");
  };
  const std::vector<std::string> more{"-d", "cpu:1", "--images-per-device", "1", "--json"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return figures(diagnose(arguments));
  };
  const Json of_run = with({run});
  CHECK(of_run == with({run + "/ckpt/last.safetensors", "-c", place.config}));
  CHECK(of_run != with({place.config}));
  CHECK(of_run == with({run, "-s", "bn.mode=sync"}));
}

TEST_CASE("diagnose: nothing is shared by norms of one image") {
  const Place place;
  const Outcome outcome = diagnose({place.config, "-d", "cpu:1", "--images-per-device", "1", "-s",
                                    "bn.mode=group", "-s", "bn.groups=2"});
  CHECK(outcome.exit_code == 0);
  check_contains(outcome.out, "nothing is shared: no layer");
}

TEST_CASE("diagnose refuses what it cannot do, with what was expected") {
  const Place place;
  const auto refused = [](const std::vector<std::string>& arguments, int code, const char* text) {
    CAPTURE(text);
    const Outcome outcome = diagnose(arguments);
    CHECK(outcome.exit_code == code);
    check_contains(outcome.err, text);
    CHECK(outcome.out.empty());
  };
  const std::string cpu = "cpu:1";
  refused({place.config, "-d", cpu, "--images-per-device", "8"}, 2,
          "compares at least two sets of them, 16 images, and there");
  refused({place.config, "-d", cpu, "--images-per-device", "0"}, 2, "expected an integer from 1");
  refused({place.config, "-d", cpu, "--images-per-device", "many"}, 2, "--images-per-device");
  refused({place.config, "-d", cpu, "--images", "1"}, 2, "--images: expected an integer from 2");
  refused({place.config, "-c", place.config}, 2, "is a configuration already");
  refused({place.at("nowhere"), "-d", cpu}, 3, "there is no such run or checkpoint");
  place.folder.write("not.safetensors", "abc");
  refused({place.at("not.safetensors"), "-d", cpu}, 2, "--config");
  refused({place.at("not.safetensors"), "-c", place.config, "-d", cpu, "--images-per-device", "1"},
          3, "not.safetensors");
  refused({}, 2, "TARGET");
}

}  // namespace lockstep
