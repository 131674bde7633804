// Runs that are cut off, stopped or changed, and go on.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "run/run_lock.h"
#include "run/tensorboard.h"
#include "train/evaluator.h"
#include "train/runs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::check_same_run;
using test::lines_of;
using test::read_text;
using test::Runs;
}  // namespace

TEST_CASE("a run that was cut off and resumed is the run that was not") {
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{"bn.mode=local"},
        {"bn.mode=sync"},
        {"bn.mode=virtual", "bn.virtual_devices=2"},
        {"bn.mode=local", "bn.freeze_at=0.5"},  // between the checkpoint and the end
        {"bn.mode=renorm", "bn.renorm_warmup=0.1"},
        {"bn.mode=renorm", "bn.renorm_warmup=0.1", "bn.renorm_slices=2"},
        {"bn.mode=group", "bn.groups=2"},
        {"bn.mode=sync", "optim.type=adamw", "optim.head_lr_mult=10"}}) {
    CAPTURE(mode.back());
    const Runs runs;
    train(runs.request("whole", mode));
    TrainRequest cut = runs.request("cut", mode);
    cut.fault = "throw:rank=2,step=7";
    CHECK_THROWS_WITH_AS(train(cut),
                         doctest::Contains("replica 2 (cpu:2): injected failure in step 7"),
                         ReplicaError);
    CHECK(lines_of(runs.folder("cut").events()).back().at("exit_code") == 5);
    CHECK_FALSE(read_summary(runs.folder("cut").root));
    cut.fault.clear();
    cut.resume = "auto";
    CHECK(train(cut).iterations == 10);
    check_same_run(runs.folder("whole"), runs.folder("cut"));
    CHECK(read_summary(runs.folder("cut").root).has_value());
  }
}

TEST_CASE("an average of the weights is evaluated, saved, and goes on in a resumed run") {
  for (const auto& [mode, statistics] : {std::pair{"bn.mode=local", "ema.bn=copy"},
                                         {"bn.mode=sync", "ema.bn=copy"},
                                         {"bn.mode=local", "ema.bn=average"},
                                         {"bn.mode=sync", "ema.bn=average"},
                                         {"bn.mode=renorm", "ema.bn=average"},
                                         {"bn.mode=sync", "ema.bn=precise"}}) {
    CAPTURE(mode);
    CAPTURE(statistics);
    std::vector<std::string> settings{mode, "bn.precise_iters=3", "optim.clip_norm=1"};
    if (mode == std::string("bn.mode=renorm")) settings.emplace_back("bn.renorm_slices=2");
    std::vector<std::string> averaged = settings;
    averaged.insert(averaged.end(), {"ema.decay=0.5", statistics});
    const Runs runs;
    const TrainSummary whole = train(runs.request("whole", averaged));
    TrainRequest cut = runs.request("cut", averaged);
    cut.fault = "throw:rank=2,step=7";
    CHECK_THROWS_AS(train(cut), ReplicaError);
    cut.fault.clear();
    cut.resume = "auto";
    train(cut);
    check_same_run(runs.folder("whole"), runs.folder("cut"));
    const fs::path file = runs.folder("cut").checkpoint("last_ema");
    CHECK(read_text(file) == read_text(runs.folder("whole").checkpoint("last_ema")));
    // What others make of the file is what the training said of it.
    std::vector<json> said;
    for (const json& line : lines_of(runs.folder("cut").scalars())) {
      if (line.at("mode") == "val_ema") said.push_back(line);
    }
    REQUIRE(said.size() == 3);
    CHECK(said.back().at("step") == 10);
    EvalRequest request{file, {}, {}, "cpu:1"};
    const EvalReport report = evaluate_checkpoint(request);
    CHECK(report.iteration == 10);
    CHECK(said.back().at("mIoU") == score(report.evaluation).value());
    // The plain weights are trained as without it.
    const TrainSummary plain = train(runs.request("plain", settings));
    CHECK(plain.evaluation.confusion == whole.evaluation.confusion);
    CHECK(read_text(runs.folder("plain").checkpoint("last")) ==
          read_text(runs.folder("whole").checkpoint("last")));
    CHECK_FALSE(fs::exists(runs.folder("plain").checkpoint("last_ema")));
  }
}

TEST_CASE("a run goes on with the other gradient exchange, and says which it has") {
  for (const char* next : {"owner", "all_reduce"}) {
    const std::string first = next == std::string("owner") ? "all_reduce" : "owner";
    const Runs runs;
    train(runs.request("whole", {"bn.mode=sync", "run.gradient_exchange=" + first}));
    TrainRequest cut = runs.request("cut", {"bn.mode=sync", "run.gradient_exchange=" + first});
    cut.fault = "throw:rank=2,step=7";
    CHECK_THROWS_AS(train(cut), ReplicaError);
    TrainRequest rest =
        runs.request("cut", {"bn.mode=sync", std::string("run.gradient_exchange=") + next});
    rest.resume = "auto";
    train(rest);
    CHECK(read_text(runs.folder("whole").scalars()) == read_text(runs.folder("cut").scalars()));
    const Checkpoint whole = load_checkpoint(runs.folder("whole").checkpoint("last"));
    const Checkpoint both = load_checkpoint(runs.folder("cut").checkpoint("last"));
    CHECK(both.state.optimizer == whole.state.optimizer);
    const auto events = lines_of(runs.folder("cut").events());
    CHECK(events.front().at("gradient_exchange") == first);
    const std::string log = read_text(runs.folder("cut").log());
    CHECK(log.find(std::string("gradient exchange: ") + next + " (as asked)") != std::string::npos);
  }
}

TEST_CASE("a stop is asked for: the step is finished, saved, and the rest can follow") {
  const Runs runs;
  train(runs.request("whole"));
  TrainRequest stopped = runs.request("stopped");
  const std::atomic<bool> stop{true};
  stopped.stop = &stop;
  const TrainSummary summary = train(stopped);
  CHECK(summary.status == TrainStatus::kInterrupted);
  CHECK(summary.iterations == 0);
  CHECK(lines_of(runs.folder("stopped").events()).back().at("status") == "interrupted");
  CHECK(read_text(runs.folder("stopped").log()).find(" --resume") != std::string::npos);
  stopped.stop = nullptr;
  stopped.resume = runs.folder("stopped").checkpoint("last").string();
  stopped.output.clear();
  train(stopped);
  check_same_run(runs.folder("whole"), runs.folder("stopped"));
}

TEST_CASE("sync groups have statistics of their own: other devices cannot go on with them") {
  const Runs runs;
  const std::vector<std::string> groups{"bn.mode='sync'", "bn.sync_group=2", "run.max_iters=4"};
  train(runs.request("a", groups));
  TrainRequest request = runs.request("b", groups);
  request.resume = runs.folder("a").checkpoint("last").string();
  request.devices = "cpu:2";
  CHECK_THROWS_WITH_AS(
      train(request), doctest::Contains("every sync group has statistics of its own; use -d cpu:4"),
      ConfigError);
}

TEST_CASE("micro-batches: a run and a resumed one are the same, and statistics can be precise") {
  const Runs runs;
  const std::vector<std::string> overrides{"batch.accumulate=3", "bn.eval_stats='precise'",
                                           "bn.precise_iters=2", "schedule.type='constant'"};
  train(runs.request("whole", overrides));
  TrainRequest cut = runs.request("cut", overrides);
  cut.config.run.max_iters = 4;
  train(cut);
  TrainRequest rest = runs.request("cut", overrides);
  rest.resume = "auto";
  train(rest);
  CHECK(read_weights(runs.folder("cut").checkpoint("last")).tensors.at("head.bias").data ==
        read_weights(runs.folder("whole").checkpoint("last")).tensors.at("head.bias").data);
  const TensorMap whole = read_weights(runs.folder("whole").checkpoint("last")).tensors;
  std::int64_t count = 0;
  std::memcpy(&count, whole.at("encoder.0.0.bn.num_batches_tracked").data.data(), sizeof count);
  CHECK(count == 30);
}

TEST_CASE("resuming a finished run repeats nothing") {
  const Runs runs;
  TrainRequest request = runs.request("a");
  const TrainSummary first = train(request);
  const std::string scalars = read_text(runs.folder("a").scalars());
  request.resume = "auto";
  const TrainSummary again = train(request);
  CHECK(again.evaluation.confusion == first.evaluation.confusion);
  CHECK(read_text(runs.folder("a").scalars()) == scalars);
  // Nor does it forget what the steps took and showed.
  for (const TrainSummary& kept : {again, read_summary(runs.folder("a").root).value()}) {
    CHECK(kept.times.median_step == first.times.median_step);
    CHECK(kept.images_per_second == first.images_per_second);
    CHECK(kept.ranks.size() == first.ranks.size());
    CHECK(kept.batch_norms.size() == first.batch_norms.size());
  }
}

TEST_CASE("a run that goes on with other convolutions says so") {
  const Runs runs;
  // With 8 channels there is a choice.
  const auto run = [&](const char* implementation, std::int64_t iters, bool resume) {
    TrainRequest request = runs.request("a", {"model.width=8", "run.max_iters=4"});
    request.config.run.max_iters = iters;
    if (resume) request.resume = "auto";
    setenv("LOCKSTEP_CONVOLUTION", implementation, 1);
    train(request);
    unsetenv("LOCKSTEP_CONVOLUTION");
    return read_text(runs.folder("a").log());
  };
  const std::string first = run("onednn", 4, false);
  CHECK(first.find("by onednn") != std::string::npos);
  const json environment = json::parse(read_text(runs.folder("a").environment()));
  REQUIRE_FALSE(environment.at("choices").empty());
  CHECK(run("onednn", 5, true).find("other implementations") == std::string::npos);
  CHECK(run("winograd8", 6, true).find("other implementations") != std::string::npos);
}

TEST_CASE("a folder that holds a run is not written to unless it is resumed") {
  const Runs runs;
  train(runs.request("a"));
  CHECK_THROWS_WITH_AS(train(runs.request("a")), doctest::Contains("--resume"), ConfigError);
}

TEST_CASE("a run folder in use is refused to another training, and left as it was") {
  const Runs runs;
  const fs::path root = runs.path() / "new" / "a";
  {
    const RunLock lock(root);
    const std::string who = "another training (process " + std::to_string(getpid()) + " on ";
    CHECK_THROWS_WITH_AS(RunLock{root}, doctest::Contains(who.c_str()), ConfigError);
    TrainRequest request = runs.request("new/a");
    CHECK_THROWS_WITH_AS(train(request), doctest::Contains("another folder with -o"), ConfigError);
    CHECK(std::distance(fs::directory_iterator(root), {}) == 1);
  }
  CHECK_FALSE(fs::exists(runs.path() / "new"));
  train(runs.request("new/a"));
  CHECK_FALSE(fs::exists(root / "lock"));
  // What a killed training left.
  std::ofstream(root / "lock") << "process 1 on elsewhere\n";
  TrainRequest request = runs.request("new/a");
  request.resume = "auto";
  CHECK(train(request).iterations == 10);
}

TEST_CASE("a run folder that cannot be made is named, with the folder above that is at fault") {
  const Runs runs;
  std::ofstream(runs.path() / "file") << "text";
  const std::string fault = (runs.path() / "file/a").string() + ": Not a directory";
  CHECK_THROWS_WITH_AS(RunLock{runs.path() / "file/a/b"}, doctest::Contains(fault.c_str()), Error);
  CHECK_THROWS_WITH_AS(RunLock{"/proc/nosuch/run"},
                       "cannot make the run folder /proc/nosuch/run: /proc/nosuch: "
                       "No such file or directory",
                       Error);
  fs::create_symlink("nowhere", runs.path() / "link");
  CHECK_THROWS_WITH_AS(RunLock{runs.path() / "link"},
                       doctest::Contains("a link that leads to nothing"), Error);
}

TEST_CASE("an older checkpoint is resumed only into another folder") {
  const Runs runs;
  train(runs.request("a"));
  TrainRequest request = runs.request("a");
  request.resume = runs.folder("a").checkpoint("iter_8").string();
  CHECK_THROWS_WITH_AS(train(request), doctest::Contains("iter_10"), ConfigError);
  request.output = runs.path() / "b";
  train(request);
  CHECK(read_text(runs.folder("b").checkpoint("last")) ==
        read_text(runs.folder("a").checkpoint("last")));
}

TEST_CASE("a run that was killed in its last checkpoint has a whole one when it was resumed") {
  const Runs runs;
  train(runs.request("whole"));
  TrainRequest request = runs.request("a");
  train(request);
  // The weights of the last step, and still the training state of the checkpoint before.
  fs::copy_file(state_path(runs.folder("a").checkpoint("iter_8")),
                state_path(runs.folder("a").checkpoint("last")),
                fs::copy_options::overwrite_existing);
  CHECK_THROWS_AS(load_checkpoint(runs.folder("a").checkpoint("last")), DataError);
  request.resume = "auto";
  train(request);
  check_same_run(runs.folder("whole"), runs.folder("a"));
  CHECK(load_checkpoint(runs.folder("a").checkpoint("last")).state.iteration == 10);
}

TEST_CASE("a run that was cut off in its last evaluation knows its best when it was resumed") {
  const std::vector<std::string> at_the_end{"run.val_every=0"};
  const Runs runs;
  const TrainSummary whole = train(runs.request("whole", at_the_end));
  REQUIRE(whole.best_score);
  TrainRequest cut = runs.request("cut", at_the_end);
  cut.fault = "evaluation:step=10";
  CHECK_THROWS_WITH_AS(train(cut), doctest::Contains("injected failure in the evaluation"), Error);
  const fs::path last = runs.folder("cut").checkpoint("last");
  CHECK_FALSE(load_checkpoint(last).state.best_score);
  cut.fault.clear();
  cut.resume = "auto";
  train(cut);
  check_same_run(runs.folder("whole"), runs.folder("cut"));
  CHECK(load_checkpoint(last).state.best_score == whole.best_score);
  CHECK(load_checkpoint(last).state.best_iter == 10);
}

TEST_CASE("a validation that fails leaves its step's checkpoint, and is made up for when resumed") {
  for (const auto& [step, freeze] : {std::pair{4, "bn.freeze_at=1"},
                                     {8, "bn.freeze_at=0.6"},
                                     {8, "bn.freeze_at=0.8"},
                                     {10, "bn.freeze_at=0.6"}}) {
    CAPTURE(std::string(freeze));
    const Runs runs;
    const std::vector<std::string> both{"run.val_every=4", "run.checkpoint_every=4",
                                        "run.eval_disparity=true", freeze};
    train(runs.request("whole", both));
    TrainRequest cut = runs.request("cut", both);
    cut.fault = "evaluation:step=" + std::to_string(step);
    CHECK_THROWS_WITH_AS(train(cut), doctest::Contains("injected failure in the evaluation"),
                         Error);
    CHECK(load_checkpoint(runs.folder("cut").checkpoint("last")).state.iteration == step);
    cut.fault.clear();
    cut.resume = "auto";
    train(cut);
    check_same_run(runs.folder("whole"), runs.folder("cut"));
    const auto evaluations = [&](const char* run) {
      const std::vector<json> events = lines_of(runs.folder(run).events());
      return std::count_if(events.begin(), events.end(),
                           [](const json& line) { return line.at("type") == "eval"; });
    };
    CHECK(evaluations("cut") == evaluations("whole"));
  }
}

TEST_CASE("--resume alone goes on with the newest run, and makes no other one of it") {
  const Runs runs;
  const auto request = [&](const char* folder, std::vector<std::string> more) {
    more.push_back("run.work_dir=" + runs.path().string());
    TrainRequest made = runs.request("", more);
    made.output = *folder == '\0' ? fs::path() : runs.path() / "tiny" / folder;
    return made;
  };
  const fs::path older = train(request("20250101_000000-s0", {"run.max_iters=4"})).run;
  const std::string ended = read_text(RunFolder{older}.events());
  // As one that has ended may go on for more steps, and not with another optimizer.
  TrainRequest other = request("", {"run.max_iters=6", "optim.lr=0.02"});
  other.resume = "auto";
  CHECK_THROWS_WITH_AS(
      train(other),
      doctest::Contains(
          "has ended and had another configuration: optim.lr (0.05 there, 0.02 here)"),
      ConfigError);
  CHECK(read_text(RunFolder{older}.events()) == ended);
  TrainRequest longer = request("", {"run.max_iters=6"});
  longer.resume = "auto";
  CHECK(train(longer).run == older);
  CHECK(fs::exists(older / "config.until_4.toml"));
  // The newest died before its first checkpoint: it begins anew, not the one before it.
  TrainRequest died = request("20250102_000000-s0", {"optim.lr=0.02"});
  died.fault = "throw:rank=2,step=1";
  CHECK_THROWS_AS(train(died), ReplicaError);
  const std::string kept = read_text(RunFolder{older}.events());
  TrainRequest again = request("", {"optim.lr=0.02"});
  again.resume = "auto";
  CHECK(train(again).run == died.output);
  CHECK(read_text(RunFolder{older}.events()) == kept);
}

TEST_CASE("a line that was cut off is neither read nor written on, and one in between is named") {
  const Runs runs;
  TrainRequest request = runs.request("a", {"run.max_iters=4"});
  train(request);
  const RunFolder folder = runs.folder("a");
  std::ofstream(folder.events(), std::ios::app) << R"({"type":"bn_la)";
  CHECK(read_summary(folder.root).has_value());
  request = runs.request("a", {"run.max_iters=6"});
  request.resume = "auto";
  train(request);
  const std::vector<json> events = lines_of(folder.events());  // all are JSON
  CHECK(std::count_if(events.begin(), events.end(),
                      [](const json& line) { return line.at("type") == "resume"; }) == 1);

  const std::string scalars = read_text(folder.scalars());
  std::ofstream(folder.scalars()) << "cut\n" << scalars;
  CHECK_THROWS_WITH_AS(
      read_scalars(folder.scalars()),
      doctest::Contains("scalars.json:1: damaged: expected a JSON object, got \"cut\""), DataError);
}

TEST_CASE("resume falls back to an older checkpoint when the newest is damaged") {
  const Runs runs;
  train(runs.request("whole"));
  train(runs.request("a", {"run.keep=1"}));
  fs::resize_file(runs.folder("a").checkpoint("last"), 100);
  fs::resize_file(runs.folder("a").checkpoint("iter_10"), 100);
  fs::remove(runs.folder("a").checkpoint("best"));
  for (const char* end : {".safetensors", ".state.safetensors"}) {
    fs::copy(runs.folder("whole").checkpoints() / ("iter_8" + std::string(end)),
             runs.folder("a").checkpoints() / ("iter_8" + std::string(end)));
  }
  TrainRequest request = runs.request("a");
  request.resume = "auto";
  train(request);
  check_same_run(runs.folder("whole"), runs.folder("a"));
  CHECK(fs::exists(runs.folder("a").checkpoints() / "iter_10.safetensors.damaged"));
  CHECK(read_text(runs.folder("a").log())
            .find("iter_10.safetensors cannot be used: kept as iter_10.safetensors.damaged") !=
        std::string::npos);
}

TEST_CASE("older numbered checkpoints stay where a run goes on from best or last") {
  const std::vector<std::string> often{"run.checkpoint_every=2", "run.max_iters=6"};
  for (const std::string& name : {std::string("best"), std::string("last")}) {
    for (const bool named : {false, true}) {
      CAPTURE(name);
      CAPTURE(named);
      const Runs runs;
      const RunFolder folder = runs.folder("a");
      train(runs.request("a", often));
      const auto rename = [&](const char* from, const std::string& to) {
        fs::rename(folder.checkpoint(from), folder.checkpoint(to));
        fs::rename(state_path(folder.checkpoint(from)), state_path(folder.checkpoint(to)));
      };
      rename("iter_6", name);
      if (name == "best") fs::remove(folder.checkpoint("last"));
      TrainRequest request = runs.request("a", often);
      request.config.run.max_iters = 8;
      request.resume = named ? folder.checkpoint(name).string() : "auto";
      CHECK(train(request).iterations == 8);
      CHECK(load_checkpoint(folder.checkpoint("iter_4")).state.iteration == 4);
      CHECK(load_checkpoint(folder.checkpoint("iter_2")).state.iteration == 2);
      CHECK(read_text(folder.log()).find("kept as") == std::string::npos);
    }
  }
}

TEST_CASE("a checkpoint named after a later step than it holds is set aside, and not as damaged") {
  const Runs runs;
  const RunFolder folder = runs.folder("a");
  train(runs.request("a", {"run.max_iters=4"}));
  fs::copy(folder.checkpoint("iter_4"), folder.checkpoint("iter_9"));
  fs::copy(state_path(folder.checkpoint("iter_4")), state_path(folder.checkpoint("iter_9")));
  TrainRequest request = runs.request("a", {"run.max_iters=4"});
  request.resume = "auto";
  train(request);
  CHECK(fs::exists(folder.checkpoints() / "iter_9.safetensors.misnamed"));
  CHECK(fs::exists(folder.checkpoints() / "iter_9.state.safetensors.misnamed"));
  CHECK(read_text(folder.log()).find("iter_9.safetensors holds step 4, not that of its name") !=
        std::string::npos);
}

TEST_CASE("resume refuses to start anew over a run whose checkpoints are all damaged") {
  const Runs runs;
  train(runs.request("a"));
  for (const auto& entry : fs::directory_iterator(runs.folder("a").checkpoints())) {
    fs::resize_file(entry.path(), 100);
  }
  const std::string logged = read_text(runs.folder("a").root / "scalars.json");
  TrainRequest request = runs.request("a");
  request.resume = "auto";
  CHECK_THROWS_WITH_AS(train(request), doctest::Contains("can be read; restore one"), DataError);
  CHECK(read_text(runs.folder("a").root / "scalars.json") == logged);
}

TEST_CASE("other devices: micro-batches go on with a warning, local refuses") {
  const Runs runs;
  for (const char* mode : {"sync", "local"}) {
    TrainRequest request =
        runs.request(mode, {"bn.mode=" + std::string(mode), "batch.accumulate=2"});
    request.fault = "throw:rank=0,step=5";
    CHECK_THROWS_AS(train(request), ReplicaError);
    request.fault.clear();
    request.devices = "cpu:2";
    request.resume = "auto";
    if (std::string(mode) == "local") {
      CHECK_THROWS_WITH_AS(train(request), doctest::Contains("use -d cpu:4"), ConfigError);
      continue;
    }
    CHECK(train(request).iterations == 10);
    CHECK(read_text(runs.folder(mode).log()).find("because a batch is cut into") !=
          std::string::npos);
  }
}

}  // namespace lockstep
