// What can be typed, from outside: which words are taken as what, and which are refused.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "app/process.h"
#include "app/tiny_config.h"
#include "support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::contains;
using test::Outcome;
using test::Process;
using test::run_lockstep;

/// The programs that are started meanwhile run in this folder.
class WorkingFolder {
 public:
  explicit WorkingFolder(const fs::path& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  ~WorkingFolder() { fs::current_path(before_); }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  fs::path before_;
};

/// The program's outcome with a full disk for its output.
Outcome run_with_full_disk(const std::vector<std::string>& arguments) {
  return Process(arguments, "", "/dev/full").wait();
}

}  // namespace

TEST_CASE("every page of the documentation prints, also one called as a subcommand is") {
  const Json pages = Json::parse(run_lockstep({"docs", "--json"}).out);
  for (const Json& page : pages) {
    const std::string name = page["name"];
    CAPTURE(name);
    const Outcome printed = run_lockstep({"docs", name});
    CHECK(printed.exit_code == 0);
    CHECK(printed.out == test::read_text(page["path"].get<std::string>()));
  }
}

TEST_CASE("a run folder may be called as a subcommand is") {
  const test::TemporaryFolder folder;
  const std::string config =
      folder.write("tiny.toml", test::tiny_config("max_iters = 1\n")).string();
  const WorkingFolder here(folder.path());
  REQUIRE(run_lockstep({"train", config, "-d", "cpu:1", "-o", "plan"}).exit_code == 0);
  fs::create_directory("train");
  fs::rename("plan", "train/plan");
  fs::create_directory_symlink("train/plan", "plan");
  CHECK(contains(run_lockstep({"logs", "show", "plan"}).out, "Iter(train) [1/1]"));
  CHECK(contains(run_lockstep({"logs", "ls", "train"}).out, "train/plan"));
  CHECK(run_lockstep({"config", "show", "plan"}).exit_code == 0);
  CHECK(run_lockstep({"config", "diff", "plan", "plan"}).exit_code == 0);
}

TEST_CASE("an output that cannot be written is an error; a reader that has gone is none") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("a.toml", test::tiny_config("max_iters = 1\n")).string();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"config", "show", config}, {"docs", "run_folder"}, {"--help"}}) {
    CAPTURE(arguments.back());
    const Outcome outcome = run_with_full_disk(arguments);
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.err ==
          "lockstep: error: standard output cannot be written: No space left on device\n");
  }
  // What ended the command all the same is said first.
  const Outcome usage = run_with_full_disk({"config", "show"});
  CHECK(usage.exit_code == 2);
  CHECK_FALSE(contains(usage.err, "standard output"));
}

TEST_CASE("options that would be ignored are refused") {
  const test::TemporaryFolder folder;
  const WorkingFolder here(folder.path());
  const std::string config = folder.write("a.toml", test::tiny_config("max_iters = 1\n")).string();
  const std::string run = folder.path().string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"compare", run, run, "--seeds", "3"}, "--seeds goes with a configuration to train"},
      {{"compare", run, run, "--modes", "sync"}, "--modes goes with a configuration to train"},
      {{"compare", run, run, "-d", "cpu:1"}, "--devices goes with a configuration to train"},
      {{"compare", run, run, "-s", "run.seed=1"}, "--set goes with a configuration to train"},
      {{"logs", "plot", run, "--csv", "a"}, "--csv goes with logs export, not with logs plot"},
      {{"logs", "ls", run, "--svg", "a"}, "--svg goes with logs plot, not with logs ls"},
      {{"logs", "show", run, "-f"}, "--follow goes with logs tail, not with logs show"},
      {{"data", "check", config, "-o", run},
       "--output goes with data preview, not with data check"},
      {{"config", "init", "streets", "-s", "run.seed=1"}, "--set goes with config show, diff"},
      {{"config", "schema", config}, "INPUT goes with config show, diff, init"},
      {{"config", "schema", "-s", "run.seed=1"}, "not with config schema"},
      {{"bench", "exchange", config}, "CONFIG goes with bench step, layers"},
      {{"bench", "exchange", "-s", "run.seed=1"}, "--set goes with bench step, layers"},
      {{"bench", "step", config, "--eval"}, "--eval goes with bench layers, not with bench step"},
      {{"bench", "layers", config, "--against", "bn.mode=sync"},
       "--against goes with bench step, not with bench layers"},
      {{"plan", config, "--memory", "1"}, "--memory requires --max-batch"},
  };
  for (const auto& [arguments, message] : cases) {
    CAPTURE(message);
    const Outcome outcome = run_lockstep(arguments);
    CHECK(outcome.exit_code == 2);
    CHECK(contains(outcome.err, message));
    CHECK(outcome.out.empty());
  }
  // Of a word that is not known the command says which are.
  CHECK(contains(run_lockstep({"logs", "plto", run, "--csv", "a"}).err,
                 "ACTION: expected one of ls, show, tail, plot, export, got plto"));
}

TEST_CASE("values are refused with what was expected; an empty one is no default") {
  const test::TemporaryFolder folder;
  const WorkingFolder here(folder.path());
  const std::string config = folder.write("a.toml", test::tiny_config("max_iters = 1\n")).string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"compare", config, "--seeds", "abc"},
       "--seeds: expected an integer from 1 to 1000, got abc"},
      {{"compare", config, "--seeds", "0"}, "--seeds: expected an integer from 1"},
      {{"bench", "exchange", "--iters", "0"}, "--iters: expected an integer from 1"},
      {{"bench", "exchange", "--iters", "1.5"}, "--iters: expected an integer from 1"},
      {{"plan", config, "--steps", "99999999999"}, "--steps: expected an integer from 1"},
      {{"plan", config, "--max-batch", "--memory", "lots"},
       "--memory: expected a number > 0, got lots"},
      {{"plan", config, "--max-batch", "--memory", "0"}, "--memory: expected a number > 0, got 0"},
      {{"plan", config, "--max-batch", "--memory", "nan"}, "--memory: expected a number > 0"},
      {{"data", "preview", config, "-n", "0", "-o", "x"}, "--count: expected an integer from 1"},
      {{"train", config, "-d", "cpu:1", "-d", "cpu:2"},
       "--devices: expected once, got 2 of them: cpu:1, cpu:2"},
      {{"train", config, "-d", ""}, "--devices: expected a value, got an empty word"},
      {{"train", config, "-o", ""}, "--output: expected a value"},
      {{"train", ""}, "CONFIG: expected a value"},
      {{"eval", "run", "--split", ""}, "--split: expected a value"},
      {{"eval", "run", "--scales", ""}, "--scales: expected a value"},
      {{"train", config, "--seed", ""}, "--seed: expected a value"},
  };
  for (const auto& [arguments, message] : cases) {
    CAPTURE(message);
    const Outcome outcome = run_lockstep(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK(contains(outcome.err, message));
    CHECK(outcome.out.empty());
  }
  CHECK(run_lockstep(
            {"config", "show", config, "--json", "--json", "-s", "run.seed=1", "-s", "run.seed=2"})
            .exit_code == 0);
}

TEST_CASE("values of a configuration that cannot be are refused with what can") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("a.toml", test::tiny_config("")).string();
  const std::string large = "expected an integer >= 1 and <= 100000000, got ";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"run.epochs=99999999999", "run.epochs: " + large},
      {"run.max_iters=9000000000000000000", "run.max_iters: " + large},
      {"run.epochs=100000000",
       "run.epochs: 100000000 epochs of 2 steps are more than the 100000000 steps"},
      {"data.size=[100000,100000]", "in pixels, each from 1 to 65536, got [ 100000, 100000 ]"},
      {"model.output_stride=4", "model.output_stride: expected 8, 16 or 32, got 4"},
      {"model.output_stride=9", "model.output_stride: expected 8, 16 or 32, got 9"},
  };
  for (const auto& [override, message] : cases) {
    CAPTURE(override);
    const Outcome outcome = run_lockstep({"plan", config, "-d", "cpu:1", "-s", override});
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK(contains(outcome.err, message));
  }
}

TEST_CASE("sizes are height x width, as the configuration has them") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("a.toml", test::tiny_config("max_iters = 1\n")).string();
  const auto printed = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {config, "-s", "data.size=[32,48]"});
    return run_lockstep(arguments).out;
  };
  const std::string plan = printed({"plan", "-d", "cpu:1", "--steps", "1"});
  CHECK(contains(plan, "8 images of 32x48, 4 per step"));
  CHECK(contains(plan, "| 16x24"));
  CHECK(contains(printed({"data", "check"}), "8 images, all 32x48"));
  CHECK(contains(printed({"train", "-d", "cpu:1", "-o", (folder.path() / "run").string()}),
                 "4 images of 32x48"));
}

}  // namespace lockstep
