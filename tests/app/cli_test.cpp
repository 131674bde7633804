// The program from outside: exit codes, messages, Ctrl-C and kill -9.

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/process.h"
#include "app/tiny_config.h"
#include "run/checkpoint.h"
#include "run/run_folder.h"
#include "support/check_contains.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::check_contains;
using test::Outcome;
using test::Process;
using test::read_text;
using test::run_lockstep;
using test::TemporaryFolder;

const std::string kTrainingConfig =
    test::tiny_config("max_iters = 8\nlog_every = 1\ncheckpoint_every = 1\n");

struct TrainingPlace {
  TemporaryFolder folder;
  std::string config = folder.write("tiny.toml", kTrainingConfig).string();

  std::string run(const std::string& name) const { return (folder.path() / name).string(); }
  std::vector<std::string> train(const std::string& name,
                                 std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"train", config, "-d", "cpu:2", "-o", run(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

}  // namespace

TEST_CASE("usage errors end with 2 and say what was meant") {
  const TrainingPlace place;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"trian"}, "unknown subcommand `trian`; did you mean `train`?"},
      {{"frobnicate"}, "expected one of quickstart, train, eval"},
      {{"train"}, "train: expected CONFIG: configuration (TOML)\n"},
      {{"train"}, "\n  configurations that are here: data/configs/"},
      {{"train"}, "\n  for example: lockstep train data/configs/quickstart.toml "},
      {{"data"}, "data: expected ACTION: check: classes, sizes, mistakes; preview: "},
      {{"data"}, "\n  for example: lockstep data check data/configs/quickstart.toml\n"},
      {{"data", "preview"}, "\n  for example: lockstep data preview data/configs/"},
      {{"config"}, "config: expected ACTION: "},
      {{"eval"}, "eval: expected TARGET: run folder"},
      {{"export", "onnx"}, "export: expected TARGET: "},
      {{"help", "trian"}, "unknown subcommand `trian`; did you mean `train`?"},
      {{"train", place.config, "--reume"}, "unexpected option `--reume`; did you mean `--resume`?"},
      {{"train", "--hlep"}, "unexpected option `--hlep`; did you mean `--help`?"},
      {{"eval", "--josn"}, "unexpected option `--josn`; did you mean `--json`?"},
      {{"train", place.config, "-d", "gpu:1"}, "unknown device kind 'gpu'"},
      {{"train", place.config, "-s", "bn.mod=sync"}, "did you mean `mode`?"},
      {{"train", place.config, "--seed", "x"},
       "-s run.seed=x: error: run.seed: expected an integer >= 0, got \"x\""},
      {{"train", "nowhere.toml"},
       "nowhere.toml: error: cannot read this configuration file: No such file or directory"},
      {{"train", "src"}, "src: error: cannot read this configuration file: it is a folder"},
      {{"train", "--", "-d"}, "-d: error: cannot read this configuration file"},
      {{"train", "--", "a", "--b"}, "unexpected argument `--b`"},
      {{"eval", place.config}, "config"},
  };
  for (const auto& [arguments, message] : cases) {
    CAPTURE(message);
    const Outcome outcome = run_lockstep(arguments);
    CHECK(outcome.exit_code == 2);
    check_contains(outcome.err, message);
    CHECK(outcome.out.empty());
  }
}

TEST_CASE("a GPU that is not there ends with 1") {
  const TrainingPlace place;
  const Outcome outcome = run_lockstep({"train", place.config, "-d", "cuda:77"});
  CHECK(outcome.exit_code == 1);
  check_contains(outcome.err, "cuda:77 is not there");
}

TEST_CASE("doctor examines the machine and tests an exchange") {
  const auto findings = nlohmann::json::parse(run_lockstep({"doctor", "--json"}).out);
  const auto exchange = std::find_if(findings.begin(), findings.end(), [](const auto& finding) {
    return finding["topic"] == "exchange on cpu:4";
  });
  REQUIRE(exchange != findings.end());
  CHECK((*exchange)["good"] == true);
  check_contains((*exchange)["text"], "4 replicas agree");
  check_contains(run_lockstep({"doctor"}).out, "CUDA");
}

TEST_CASE("help and version end with 0") {
  check_contains(run_lockstep({"--help"}).out, "Exit codes: 0 done");
  check_contains(run_lockstep({"train", "--help"}).out, "--resume");
  for (const auto& [asked, same] :
       std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {{"help"}, {"--help"}}, {{"help", "train"}, {"train", "--help"}}}) {
    const Outcome outcome = run_lockstep(asked);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out == run_lockstep(same).out);
  }
  const Outcome nothing = run_lockstep({});
  CHECK(nothing.exit_code == 2);
  check_contains(nothing.out, "quickstart");
  check_contains(nothing.err, "expected a subcommand, for example lockstep quickstart");
  CHECK(run_lockstep({"--version"}).exit_code == 0);
}

TEST_CASE("a misspelt key is shown with its line") {
  const TrainingPlace place;
  const fs::path config = place.folder.write("bad.toml", "[bn]\nmomntum = 0.1\n");
  const Outcome outcome = run_lockstep({"train", config.string()});
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.err.starts_with(config.string() + ":2:1: error: unknown key `momntum` in [bn]\n"));
}

TEST_CASE("train, then eval: 0, and the same figures") {
  const TrainingPlace place;
  const Outcome trained =
      run_lockstep(place.train("a", {"-s", "bn.mode=sync", "--seed", "3", "--max-iters", "2"}));
  CHECK(trained.exit_code == 0);
  check_contains(trained.out, "devices: cpu:2 (as asked)");
  check_contains(trained.out, "seed 3");
  check_contains(trained.out, "Iter(train) [2/2]");
  CHECK(trained.err.empty());
  const Outcome evaluated = run_lockstep({"eval", place.run("a"), "-d", "cpu:1"});
  CHECK(evaluated.exit_code == 0);
  const std::size_t means = trained.out.find("mIoU_present");
  check_contains(evaluated.out, trained.out.substr(means, trained.out.find('\n', means) - means));
  const Outcome json = run_lockstep({"eval", place.run("a"), "--json"});
  CHECK(nlohmann::json::parse(json.out).at("iteration") == 2);
}

TEST_CASE("a folder of runs is no run: it is said what there is in it") {
  const TrainingPlace place;
  CHECK(run_lockstep(place.train("both/a", {"--max-iters", "1"})).exit_code == 0);
  for (const char* command : {"eval", "inspect"}) {
    CAPTURE(command);
    const Outcome outcome = run_lockstep({command, place.run("both")});
    CHECK(outcome.exit_code == 3);
    check_contains(outcome.err, "name one of the runs in it: " + place.run("both/a") + "\n");
  }
  fs::remove_all(place.run("both/a/ckpt"));
  check_contains(run_lockstep({"eval", place.run("both/a")}).err, "the run has saved none yet");
  check_contains(run_lockstep({"train", place.run("both/a")}).err,
                 "a run's is " + place.run("both/a/config.toml"));
}

TEST_CASE("data errors end with 3") {
  const TrainingPlace place;
  const Outcome missing =
      run_lockstep(place.train("a", {"-s", "data.layout=folder", "-s", "data.root=/nowhere/at/all",
                                     "-s", "data.num_classes=2"}));
  CHECK(missing.exit_code == 3);
  check_contains(missing.err, "/nowhere/at/all");
  CHECK_FALSE(fs::exists(place.run("a")));
  CHECK(run_lockstep({"eval", place.run("nothing")}).exit_code == 3);
  const fs::path damaged = place.folder.write("damaged.safetensors", "damaged");
  const Outcome init = run_lockstep(place.train("b", {"--init", damaged.string()}));
  CHECK(init.exit_code == 3);
  check_contains(init.err, "damaged.safetensors");
}

TEST_CASE("a loss that is not finite ends with 4") {
  const TrainingPlace place;
  const Outcome outcome = run_lockstep(place.train("a", {"-s", "optim.lr=1e38"}));
  CHECK(outcome.exit_code == 4);
  check_contains(outcome.err, "the loss of replica");
}

TEST_CASE("replicas that throw, leave an exchange out or stall end with 5") {
  const TrainingPlace place;
  const std::vector<std::string> sync{"-s", "bn.mode=sync", "-s", "run.stall_timeout=0.2"};
  const Outcome thrown = run_lockstep(place.train("a", sync), "throw:rank=1,step=3");
  CHECK(thrown.exit_code == 5);
  check_contains(thrown.err, "replica 1 (cpu:1): injected failure in step 3");
  const Outcome skipped = run_lockstep(place.train("b", sync), "skip:rank=1,step=3,call=5");
  CHECK(skipped.exit_code == 5);
  check_contains(skipped.err, "every replica must make the same BatchNorm calls in the same order");
  // The replica that sleeps never comes back in time: it is left behind and the process ends all
  // the same.
  const Outcome asleep = run_lockstep(place.train("c", sync), "sleep:rank=1,step=3,seconds=1000");
  CHECK(asleep.exit_code == 5);
  check_contains(asleep.err, "replica 1 is missing");
  check_contains(read_text(place.folder.path() / "c" / "events.jsonl"), "\"type\":\"stall\"");
}

TEST_CASE("a fault that does not exist ends with 2") {
  const TrainingPlace place;
  CHECK(run_lockstep(place.train("a"), "explode").exit_code == 2);
}

TEST_CASE("Ctrl-C finishes the step, saves, says how to go on, and ends with 130") {
  const TrainingPlace place;
  CHECK(run_lockstep(place.train("whole")).exit_code == 0);
  Process process(place.train("a", {"-s", "run.checkpoint_every=0"}), "delay:seed=1,max_us=20000");
  REQUIRE(process.wait_for("Iter(train) [1/8]"));
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  CHECK(outcome.exit_code == 130);
  check_contains(outcome.err, "stopping: what is under way ends first");
  check_contains(outcome.out, "train " + place.run("a") + "/config.toml -d cpu:2 -o " +
                                  place.run("a") + " --resume");
  const Outcome resumed = run_lockstep(
      {"train", place.run("a") + "/config.toml", "-d", "cpu:2", "-o", place.run("a"), "--resume"});
  CHECK(resumed.exit_code == 0);
  const RunFolder whole{place.run("whole")}, again{place.run("a")};
  CHECK(read_text(whole.scalars()) == read_text(again.scalars()));
  CHECK(read_text(whole.checkpoint("last")) == read_text(again.checkpoint("last")));
}

TEST_CASE("a terminal that is gone asks for a stop, and nohup goes on without one") {
  const TrainingPlace place;
  const std::string slow = "delay:seed=1,max_us=20000";
  Process process(place.train("a", {"-s", "run.checkpoint_every=0"}), slow);
  REQUIRE(process.wait_for("Iter(train) [1/8]"));
  process.send(SIGHUP);
  CHECK(process.wait().exit_code == 130);
  CHECK(fs::exists(RunFolder{place.run("a")}.checkpoint("last")));

  std::signal(SIGHUP, SIG_IGN);  // a child has it, too
  Process immune(place.train("b"), slow);
  std::signal(SIGHUP, SIG_DFL);
  REQUIRE(immune.wait_for("Iter(train) [1/8]"));
  immune.send(SIGHUP);
  CHECK(immune.wait().exit_code == 0);
}

TEST_CASE("a training goes on when nobody reads what it says any more") {
  const TrainingPlace place;
  std::string command = LOCKSTEP_BINARY;
  for (const std::string& argument : place.train("a")) command += " '" + argument + "'";
  const std::string code = (place.folder.path() / "code").string();
  const std::string both = "{ " + command + "; echo $? > '" + code + "'; } | head -n 1 > /dev/null";
  CHECK(std::system(both.c_str()) == 0);
  CHECK(read_text(code) == "0\n");
  const std::string events = read_text(RunFolder{place.run("a")}.events());
  CHECK(events.find("\"status\":\"done\"") != std::string::npos);
}

TEST_CASE("the command that goes on can be copied into a shell, whatever the folder is called") {
  const TrainingPlace place;
  const std::string name = "it's my run";
  Process process(place.train(name, {"-s", "run.checkpoint_every=0"}), "delay:seed=1,max_us=20000");
  REQUIRE(process.wait_for("Iter(train) [1/8]"));
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  const std::string run = "'" + (place.folder.path() / "it'\\''s my run").string();
  const std::string command = "train " + run + "/config.toml' -d cpu:2 -o " + run + "' --resume";
  check_contains(outcome.out, command);
  check_contains(read_text(place.folder.path() / name / "events.jsonl"),
                 nlohmann::json(command).dump().substr(1));
  const Outcome resumed = run_lockstep(place.train(name, {"--resume"}));
  check_contains(resumed.out, "eval " + run + "'\n");
  check_contains(resumed.out, "train " + run + "/config.toml' -d cpu:2 -s");
}

TEST_CASE("kill -9 at any moment leaves a run that can be resumed to the same end") {
  const TrainingPlace place;
  CHECK(run_lockstep(place.train("whole")).exit_code == 0);
  for (const int step : {1, 3, 6}) {
    CAPTURE(step);
    const std::string name = "killed" + std::to_string(step);
    Process process(place.train(name));
    process.wait_for("Iter(train) [" + std::to_string(step) + "/8]");
    process.send(SIGKILL);
    process.wait();
    const Outcome resumed = run_lockstep(place.train(name, {"--resume", "auto"}));
    CHECK(resumed.exit_code == 0);
    const RunFolder whole{place.run("whole")}, again{place.run(name)};
    CHECK(read_text(whole.scalars()) == read_text(again.scalars()));
    CHECK(read_text(whole.checkpoint("last")) == read_text(again.checkpoint("last")));
    CHECK(read_text(state_path(whole.checkpoint("last"))) ==
          read_text(state_path(again.checkpoint("last"))));
  }
}

TEST_CASE("--resume with a run's own configuration goes on with that run") {
  const TrainingPlace place;
  const std::string work_dir = "run.work_dir=" + place.run("all");
  CHECK(run_lockstep(place.train("mine", {"-s", work_dir, "--max-iters", "1"})).exit_code == 0);
  const std::string own = place.run("mine/config.toml");
  CHECK(run_lockstep({"train", own, "-d", "cpu:2"}).exit_code == 0);  // newer, of this name
  const Outcome outcome =
      run_lockstep({"train", own, "-d", "cpu:2", "--resume", "--max-iters", "2"});
  CHECK(outcome.exit_code == 0);
  check_contains(outcome.out, "everything is in " + place.run("mine") + "\n");
}

TEST_CASE("a run without its last checkpoint: those that are there are named") {
  const TrainingPlace place;
  CHECK(run_lockstep(place.train("a", {"--max-iters", "1"})).exit_code == 0);
  fs::remove(place.run("a/ckpt/last.safetensors"));
  check_contains(run_lockstep({"eval", place.run("a")}).err,
                 "name one of those that are there: " + place.run("a/ckpt/best.safetensors") +
                     ", " + place.run("a/ckpt/iter_1.safetensors") + "\n");
}

TEST_CASE("statistics of the first K layers are for data check what they are for plan") {
  const TrainingPlace place;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"data", "check"}, {"plan"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {place.config, "-d", "cpu:2", "-s", "bn.mode=sync", "-s",
                                       "bn.sync_layers=top:2"});
    const Outcome outcome = run_lockstep(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.exit_code == 0);
  }
}

TEST_CASE("a folder that holds a run is refused with 2") {
  const TrainingPlace place;
  CHECK(run_lockstep(place.train("a", {"--max-iters", "1"})).exit_code == 0);
  const Outcome outcome = run_lockstep(place.train("a"));
  CHECK(outcome.exit_code == 2);
  check_contains(outcome.err, "already holds a run");
}

}  // namespace lockstep
