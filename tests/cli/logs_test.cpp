// lockstep logs, from outside.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/logs_plot.h"
#include "cli/process.h"
#include "cli/tiny_config.h"
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
