// --json: one document on stdout and nothing else, of every command that has something to say.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "app/process.h"
#include "app/tiny_config.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
using test::run_lockstep;
using Words = std::vector<std::string>;

/// A small training and a comparison, which the commands read.
struct Place {
  test::TemporaryFolder folder;
  std::string config =
      folder.write("tiny.toml", test::tiny_config("max_iters = 2\nlog_every = 1\n")).string();
  std::string run = at("run");

  Place() { REQUIRE(run_lockstep({"train", config, "-d", "cpu:2", "-o", run}).exit_code == 0); }
  std::string at(const std::string& name) const { return (folder.path() / name).string(); }
};

/// `words` with --json; what is printed must be one document.
Json printed(Words words) {
  words.push_back("--json");
  const test::Outcome outcome = run_lockstep(words);
  INFO(words[0], " ", words.size() > 2 ? words[1] : "", ": ", outcome.err);
  CHECK(outcome.exit_code == 0);
  REQUIRE(Json::accept(outcome.out));
  return Json::parse(outcome.out);
}

}  // namespace

TEST_CASE("--json: commands that look at a machine, a configuration, data and documents") {
  const Place place;
  CHECK(printed({"doctor"}).is_array());
  CHECK(printed({"selftest", "-d", "cpu:2"}).at("rows").size() > 10);
  CHECK(printed({"config", "show", place.config})[0].at("key") == "run.name");
  CHECK(printed({"config", "diff", place.config, place.run}).is_array());
  CHECK(printed({"config", "init", "folder"})[0].at("said") == false);
  CHECK(printed({"config", "schema"})
            .at("properties")
            .at("bn")
            .at("properties")
            .at("mode")
            .at("enum") == Json({"local", "sync", "ghost", "group", "instance", "layer", "frozen",
                                 "renorm", "virtual"}));
  CHECK(printed({"data", "check", place.config}).at("train").at("images") == 8);
  CHECK(printed({"data", "preview", place.config, "-n", "2", "-o", place.at("preview")})
            .at("samples")
            .size() == 2);
  CHECK(printed({"plan", place.config, "-d", "cpu:2", "--steps", "1"}).at("steps") == 2);
  CHECK(printed({"docs"}).size() > 10);
  CHECK(printed({"docs", "run_folder"}).at("text").get<std::string>().starts_with("# The run"));
}

TEST_CASE("--json: commands that read runs") {
  const Place place;
  CHECK(printed({"eval", place.run}).at("iteration") == 2);
  CHECK(printed({"data", "preview", place.config, "-n", "1", "-o", place.at("photos")})
            .at("folder") == place.at("photos"));
  const Json predicted =
      printed({"predict", place.run, place.at("photos/000_image.png"), "-o", place.at("maps")});
  CHECK(predicted.at("images").size() == 1);
  CHECK(
      printed({"export", "safetensors", place.run, "-o", place.at("a.safetensors")}).at("format") ==
      "safetensors");
  CHECK(printed({"compare", place.run}).is_object());
  const Json page = printed({"report", place.run, "--no-images", "--figures", place.at("figures")});
  CHECK(page.at("runs") == 1);
  CHECK_FALSE(page.at("figures").empty());
  CHECK(printed({"logs", "ls", place.folder.path().string()})[0].at("status") == "done");
  CHECK(printed({"logs", "show", place.run}).at("scalars")[0].at("step") == 1);
  CHECK(printed({"logs", "plot", place.run}).at("runs")[0].at("points").size() == 2);
  CHECK(printed({"logs", "export", place.run, "--csv", place.at("a.csv")}).at("runs") == 1);
}

TEST_CASE("--json: benchmarks") {
  const Place place;
  for (const Words& bench : {Words{"step", place.config, "-d", "cpu:1"},
                             {"layers", place.config, "-d", "cpu:1"},
                             {"exchange", "-d", "cpu:2"}}) {
    Words words{"bench"};
    words.insert(words.end(), bench.begin(), bench.end());
    words.insert(words.end(), {"--iters", "1"});
    CHECK(printed(words).is_object());
  }
}

}  // namespace lockstep
