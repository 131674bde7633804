// lockstep logs, from outside.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/logs_plot.h"
#include "app/process.h"
#include "app/tiny_config.h"
#include "lockstep/core/check.h"
#include "run/run_lock.h"
#include "support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::contains;
using test::Outcome;
using test::run_lockstep;

TEST_CASE("runs are listed, read, drawn and exported, and TensorBoard's files are written") {
  const test::TemporaryFolder folder;
  const std::string config =
      folder
          .write("tiny.toml",
                 test::tiny_config("max_iters = 4\nlog_every = 1\ntensorboard = true\n"))
          .string();
  const fs::path run = folder.path() / "runs/a,b";
  REQUIRE(run_lockstep({"train", config, "-d", "cpu:2", "-o", run.string()}).exit_code == 0);
  CHECK(std::distance(fs::directory_iterator(run / "tensorboard"), {}) == 1);

  const Outcome listed = run_lockstep({"logs", "ls", (folder.path() / "runs").string(), "--json"});
  const Json runs = Json::parse(listed.out);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0]["status"] == "done");
  CHECK(runs[0]["step"] == 4);
  CHECK(runs[0]["score"].is_number());
  const Outcome shown = run_lockstep({"logs", "show", run.string()});
  CHECK(contains(shown.out, "Iter(train) [1/4]"));
  const Outcome tail = run_lockstep({"logs", "tail", "-f", run.string()});
  CHECK(tail.exit_code == 0);  // the run has ended
  CHECK_FALSE(contains(tail.out, "Iter(train) [1/4]"));
  CHECK(contains(run_lockstep({"logs", "plot", run.string()}).out, "a: "));
  const fs::path drawing = folder.path() / "loss.svg";
  const Outcome drawn = run_lockstep({"logs", "plot", run.string(), "--svg", drawing.string()});
  CHECK(drawn.out == drawing.string() + ": train/loss of 1 run\n");
  const Outcome told =
      run_lockstep({"logs", "plot", run.string(), "--svg", drawing.string(), "--json"});
  CHECK(Json::parse(told.out)["runs"][0]["points"].size() == 4);
  const std::string svg = test::read_text(drawing);
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(contains(svg, ">" + run.string() + ", step 4: "));
  CHECK(contains(svg, "class=\"curve m0\""));
  const Outcome unknown = run_lockstep({"logs", "plot", run.string(), "--key", "los"});
  CHECK(unknown.exit_code == 2);
  CHECK(contains(unknown.err, "train/loss"));

  const fs::path csv = folder.path() / "all.csv";
  const fs::path board = folder.path() / "board";
  CHECK(run_lockstep({"logs", "export", run.string(), "--csv", csv.string(), "--tensorboard",
                      board.string()})
            .exit_code == 0);
  std::ifstream stream(csv);
  std::string line;
  std::getline(stream, line);
  CHECK(line == "run,step,name,value");
  std::size_t numbers = 0, written = 0;
  while (std::getline(stream, line)) {
    CHECK(line.starts_with("\"" + run.string() + "\","));
    ++written;
  }
  std::ifstream scalars(run / "scalars.json");
  while (std::getline(scalars, line)) {
    const Json numbers_of_line = Json::parse(line);
    for (const auto& [name, value] : numbers_of_line.items())
      numbers += value.is_number() && name != "step" && name != "iter" ? 1 : 0;
  }
  CHECK(written == numbers);
  CHECK(fs::file_size(fs::directory_iterator(board / "a,b")->path()) > 16 * numbers);
  CHECK(run_lockstep({"logs", "export", run.string()}).exit_code == 2);
  const Outcome again =
      run_lockstep({"logs", "export", run.string(), "--tensorboard", board.string()});
  CHECK(again.exit_code == 2);
  CHECK(contains(again.err, "is there already"));
  CHECK(run_lockstep({"logs", "ls", (folder.path() / "nowhere").string()}).exit_code == 2);
}

TEST_CASE("runs are listed with what they say of themselves, and one that cannot be read as such") {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& run, const std::string& events) {
    fs::create_directories(folder.path() / run);
    std::ofstream(folder.path() / run / "events.jsonl") << events;
    std::ofstream(folder.path() / run / "scalars.json")
        << R"({"mode":"train","step":2,"loss":0.5})" << '\n';
  };
  const std::string header =
      R"({"type":"header","step":0,"devices":"cpu:4","bn_mode":"sync","seed":7})"
      "\n";
  const std::string resume =
      R"({"type":"resume","step":1,"devices":"cpu:2","bn_mode":"sync","seed":7})"
      "\n";
  const std::string failed =
      R"({"type":"end","step":3,"status":"failed","exit_code":4,"error":"not finite"})"
      "\n";
  write("a_failed", header + failed);
  write("b_interrupted", header + R"({"type":"end","step":5,"status":"interrupted"})"
                                  "\n");
  write("c_no_end", header);
  write("d_resumed", header + failed + resume);
  write("e_no_scalars", header + failed);
  fs::remove(folder.path() / "e_no_scalars/scalars.json");
  write("f_damaged", R"({"type":7})"
                     "\n");
  write("h_former_name", R"({"type":"header","bn_mode":"virtual"})"
                         "\n");
  // Who looks into it is refused, as where permission is missing.
  fs::create_directory(folder.path() / "g_refused");
  fs::create_symlink("config.toml", folder.path() / "g_refused/config.toml");

  const Outcome listed = run_lockstep({"logs", "ls", folder.path().string(), "--json"});
  CHECK(listed.exit_code == 0);
  const Json runs = Json::parse(listed.out);
  REQUIRE(runs.size() == 8);
  const auto expect = [&](std::size_t run, const char* status, std::int64_t step,
                          const char* devices) {
    CAPTURE(run);
    CHECK(runs[run]["status"] == status);
    CHECK(runs[run]["step"] == step);
    CHECK(runs[run]["devices"] == devices);
    CHECK(runs[run]["bn_mode"] == "sync");
    CHECK(runs[run]["seed"] == 7);
  };
  expect(0, "failed", 3, "cpu:4");
  CHECK(runs[0]["error"] == "not finite");
  expect(1, "interrupted", 5, "cpu:4");
  expect(2, "no end", 2, "cpu:4");
  expect(3, "no end", 2, "cpu:2");
  CHECK_FALSE(runs[3].contains("error"));
  expect(4, "unreadable", 3, "cpu:4");
  CHECK(runs[4]["error"] == "scalars.json: No such file or directory");
  CHECK(runs[5]["status"] == "unreadable");
  CHECK(contains(runs[5]["error"], "events.jsonl:1: damaged"));
  CHECK(runs[6]["status"] == "unreadable");
  CHECK(runs[7]["bn_mode"] == "ghost");
  const Outcome table = run_lockstep({"logs", "ls", folder.path().string()});
  CHECK(table.exit_code == 0);
  CHECK(contains(table.out, "unreadable: scalars.json: No such file or directory"));
  CHECK(contains(table.out, "e_no_scalars"));
}

TEST_CASE("of a run without an end the lock says whether it is at work or was killed") {
  const test::TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  fs::create_directory(run);
  std::ofstream(run / "events.jsonl") << R"({"type":"header","step":0})" << '\n';
  std::ofstream(run / "scalars.json");
  std::ofstream(run / "run.log") << "step 1\n";
  const auto status = [&] {
    const Outcome listed = run_lockstep({"logs", "ls", run.string(), "--json"});
    REQUIRE(listed.exit_code == 0);
    return Json::parse(listed.out)[0]["status"].get<std::string>();
  };
  CHECK(status() == "no end");
  std::string holder;
  {
    const RunLock training(run);
    CHECK(status() == "running");
    CHECK(status() == "running");  // a look does not take the lock away
    CHECK_THROWS_AS(RunLock{run}, ConfigError);
    holder = test::read_text(run / "lock");
  }
  CHECK(status() == "no end");
  std::ofstream(run / "lock") << holder;
  CHECK(status() == "killed");
  const Outcome followed = run_lockstep({"logs", "tail", "-f", run.string()});
  CHECK(followed.exit_code == 0);
  CHECK(followed.out == "step 1\n");
  CHECK(contains(followed.err, "run: the training was killed; to go on"));
  std::ofstream(run / "lock") << "process 1 on another machine\n";
  CHECK(status() == "no end");
  const RunLock resumed(run);
  CHECK(status() == "running");
}

TEST_CASE("what is exported replaces a file as a whole or not at all, and not what it is made of") {
  const test::TemporaryFolder folder;
  const std::string config =
      folder.write("tiny.toml", test::tiny_config("max_iters = 1\n")).string();
  const fs::path run = folder.path() / "run";
  REQUIRE(run_lockstep({"train", config, "-d", "cpu:1", "-o", run.string()}).exit_code == 0);
  const auto export_to = [&](const fs::path& csv) {
    return run_lockstep({"logs", "export", run.string(), "--csv", csv.string()});
  };
  const fs::path replaced = folder.write(std::string(250, 'a'), "old");
  CHECK(export_to(replaced).exit_code == 0);
  CHECK(test::read_text(replaced).starts_with("run,step,name,value\n"));
  const fs::path loop = folder.path() / "loop";
  fs::create_symlink(loop, loop);
  const Outcome failed = export_to(loop);
  CHECK(failed.exit_code == 1);
  CHECK(contains(failed.err, "symbolic links"));
  CHECK(fs::is_symlink(loop));
  const Outcome full = export_to("/dev/full");
  CHECK(full.exit_code == 1);
  CHECK(contains(full.err, "cannot write /dev/full: No space left on device"));

  const fs::path comparison = folder.path() / "compared";
  fs::create_directory(comparison);
  folder.write("compared/comparison.json", "{}");
  const std::string scalars = test::read_text(run / "scalars.json");
  for (const fs::path& file :
       {run / "scalars.json", run / "ckpt/../config.toml", run / "ckpt/last.safetensors",
        run / "ckpt/other.csv", run / "data.tsv", run / "lock", run / "config.until_5.toml",
        comparison / "comparison.md"}) {
    CAPTURE(file.string());
    const Outcome refused = export_to(file);
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "is among the files that a run or a comparison keeps"));
    CHECK(run_lockstep({"logs", "plot", run.string(), "--svg", file.string()}).exit_code == 2);
    CHECK(run_lockstep({"report", run.string(), "--no-images", "-o", file.string()}).exit_code ==
          2);
    for (const char* format : {"onnx", "safetensors"}) {
      CHECK(run_lockstep({"export", format, run.string(), "-o", file.string()}).exit_code == 2);
    }
  }
  CHECK(test::read_text(run / "scalars.json") == scalars);
  CHECK(export_to(run / "all.csv").exit_code == 0);

  const fs::path weights = folder.path() / "weights.safetensors";
  REQUIRE(run_lockstep({"export", "safetensors", run.string(), "-o", weights.string()}).exit_code ==
          0);
  for (const std::string& output : {weights.string(), config}) {
    const Outcome refused =
        run_lockstep({"export", "safetensors", weights.string(), "-c", config, "-o", output});
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "is what is read"));
  }
}

TEST_CASE("a plot is as wide as the terminal, from 40 to 120 columns") {
  const auto width = [](int terminal) {
    const std::string text = plot_text({{"a", {{0, 0}, {1, 1}}}}, plot_columns(terminal), 3);
    return text.find('\n');
  };
  CHECK(width(80) == 79);
  CHECK(width(1) == 39);
  CHECK(width(500) == 119);
  CHECK(width(0) == 99);
}

TEST_CASE("a plot has every point in its place") {
  const std::string text =
      plot_text({{"up", {{0, 0}, {1, 1}, {2, 2}}}, {"down", {{0, 2}, {2, 0}, {1, 1}}}}, 5, 3);
  CHECK(contains(text, "         2 |b   a\n"));
  CHECK(contains(text, "           |  *  \n"));
  CHECK(contains(text, "         0 |a   b\n"));
  CHECK(contains(text, "b: down"));
  CHECK(plot_text({}, 5, 3) == "no points\n");
}

}  // namespace
}  // namespace lockstep
