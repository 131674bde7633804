// compare and bench as a user runs them.

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "app/process.h"
#include "run/run_lock.h"
#include "support/check_contains.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;
using test::check_contains;
using test::Outcome;
using test::Process;
using test::read_text;
using test::run_lockstep;
using test::TemporaryFolder;

const char* const kComparisonConfig = R"([run]
max_iters = 6
checkpoint_every = 1
[data]
layout = "streets"
size = [32, 32]
train_images = 8
val_images = 2
[batch]
per_device = 2
[model]
width = 4
depth = 2
)";

struct ComparisonPlace {
  TemporaryFolder folder;
  std::string config = folder.write("tiny.toml", kComparisonConfig).string();
  std::string output = (folder.path() / "out").string();

  std::vector<std::string> compare(const std::string& modes,
                                   std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"compare", config,    "-d",  "cpu:2",   "-o",
                                       output,    "--modes", modes, "--seeds", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string cell(const std::string& name) const { return output + "/" + name; }
  /// The text of a comparison that is seen from elsewhere, as it is seen from the folder of its
  /// runs.
  static std::string from_output(std::string text, const std::string& elsewhere) {
    for (std::size_t at = 0; (at = text.find(elsewhere, at)) != std::string::npos;) {
      text.erase(at, elsewhere.size());
    }
    return text;
  }
  std::string from_output(const std::string& text) const { return from_output(text, output + "/"); }
};

std::string scalars(const ComparisonPlace& place, const std::string& cell) {
  return read_text(place.cell(cell) + "/scalars.json");
}

}  // namespace

TEST_CASE("compare trains every cell once") {
  const ComparisonPlace place;
  // A key that means nothing with this schedule.
  const auto command = place.compare("local,sync,ghost", {"-s", "schedule.gamma=0.5"});
  const Outcome first = run_lockstep(command);
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  check_contains(first.err, "WARNING");  // not on a terminal, either
  check_contains(first.err, "schedule.gamma");
  CHECK(first.err.find("INFO") == std::string::npos);
  check_contains(first.out, "the smallest possible p-value is 0.5");
  check_contains(first.out, "ghost: cpu:1, 2 slices");
  check_contains(first.out, "[6/6] ghost seed 1: training");
  check_contains(first.out, "; 2 seeds are too few to settle what is best, 6 can.\nWhat ");
  check_contains(first.out, "sync - local = ");

  const Json report = Json::parse(read_text(place.cell("comparison.json")));
  REQUIRE(report["modes"].size() == 3);
  CHECK(report["modes"][0]["mIoU_by_seed"].size() == 2);
  // Each also by own statistics, and all of them in pairs.
  REQUIRE(report["rows"].size() == 6);
  CHECK(report["rows"][3]["row"] == "local by own");
  CHECK(report["rows"][3]["mIoU_by_seed"].size() == 2);
  CHECK(report["pairs"].size() == 15);
  CHECK(report["best"]["settled"] == false);
  CHECK(report["warnings"].empty());
  // A slice is a device: the losses agree to rounding.
  const double local = report["modes"][0]["train_loss"]["mean"];
  const double slices = report["modes"][2]["train_loss"]["mean"];
  CHECK(local == doctest::Approx(slices).epsilon(1e-4));
  check_contains(read_text(place.cell("comparison.md")), "| local");

  const Outcome again = run_lockstep(command);
  CHECK(again.exit_code == 0);
  check_contains(again.out, "[6/6] ghost seed 1: done before");
  CHECK(again.out.find("training") == std::string::npos);

  const Outcome later =
      run_lockstep(place.compare("local", {"-s", "schedule.gamma=0.5", "--first-seed", "1"}));
  CHECK(later.exit_code == 0);
  check_contains(later.out, "[1/2] local seed 1: done before");
  check_contains(later.out, "[2/2] local seed 2: training");

  // Comparisons were once written with the mode's former name.
  std::filesystem::rename(place.cell("ghost-s1"), place.cell("virtual-s1"));
  const Outcome former = run_lockstep(command);
  CHECK(former.exit_code == 0);
  check_contains(former.out, "[6/6] ghost seed 1: done before");

  const Outcome other = run_lockstep(place.compare("local,sync", {"-s", "optim.lr=0.5"}));
  CHECK(other.exit_code == 2);
  check_contains(other.err,
                 "holds a run with another configuration: optim.lr (0.01 there, 0.5 here)");
  check_contains(other.err, "give the values that are there with -s");
}

TEST_CASE("a mode that cannot train does not hold up the others") {
  const ComparisonPlace place;
  // One image of one value per channel in the deepest stage: nothing to normalise by.
  const std::vector<std::string> tiny{"-s", "data.size=[16, 16]", "-s", "model.depth=5",
                                      "-s", "batch.per_device=1", "-s", "run.max_iters=1"};
  const Outcome outcome = run_lockstep(place.compare("local,sync", tiny));
  CHECK(outcome.exit_code == 1);
  check_contains(outcome.out, "[1/4] local seed 0: cannot train: ");
  check_contains(outcome.out, "Warning: local cannot train (seeds 0, 1): ");
  check_contains(outcome.out, "cannot train |");
  CHECK(Json::parse(read_text(place.output + "/comparison.json"))["modes"].size() == 1);
  // Read again, it is still told.
  const Outcome again = run_lockstep({"compare", place.output, "--json"});
  CHECK(Json::parse(again.out)["failed"].size() == 2);
  REQUIRE(run_lockstep({"report", place.output, "--no-images"}).exit_code == 0);
  check_contains(read_text(place.output + "/report.html"), "local cannot train (seeds 0, 1): ");
  const Outcome alone = run_lockstep(place.compare("local", tiny));
  CHECK(alone.exit_code == 5);
}

TEST_CASE("a comparison does not take what it trains by itself, nor a run's folder") {
  const ComparisonPlace place;
  for (const auto& [key, option] :
       {std::pair{"run.seed=3", "--first-seed"}, {"bn.mode=ghost", "--modes"}}) {
    const Outcome outcome = run_lockstep(place.compare("local,sync", {"-s", key}));
    CHECK(outcome.exit_code == 2);
    check_contains(outcome.err, option);
  }
  REQUIRE(run_lockstep(
              {"train", place.config, "-d", "cpu:2", "-o", place.output, "-s", "run.max_iters=1"})
              .exit_code == 0);
  const Outcome outcome = run_lockstep(place.compare("local,sync"));
  CHECK(outcome.exit_code == 2);
  check_contains(outcome.err, "holds a run, and a comparison wants a folder of its own");
}

TEST_CASE("a run that another training holds is no failure of its mode") {
  const ComparisonPlace place;
  const RunLock held(std::filesystem::path(place.output) / "sync-s0");
  const Outcome outcome = run_lockstep(place.compare("local,sync", {"-s", "run.max_iters=1"}));
  CHECK(outcome.exit_code == 2);
  check_contains(outcome.err, "is in use by another training");
  CHECK_FALSE(std::filesystem::exists(place.output + "/comparison.json"));
}

TEST_CASE("an interrupted comparison continues where it stopped") {
  const ComparisonPlace whole;
  REQUIRE(run_lockstep(whole.compare("local,sync", {"-s", "run.max_iters=40"})).exit_code == 0);
  const ComparisonPlace place;
  const std::vector<std::string> command = place.compare("local,sync", {"-s", "run.max_iters=40"});
  Process process(command);
  REQUIRE(process.wait_for("[2/4] sync seed 0: training"));
  process.send(SIGINT);
  const Outcome interrupted = process.wait();
  CHECK(interrupted.exit_code == 130);
  check_contains(interrupted.out, "the same command continues");
  const Outcome resumed = run_lockstep(command);
  CAPTURE(resumed.err);
  CHECK(resumed.exit_code == 0);
  check_contains(resumed.out, "[1/4] local seed 0: done before");
  for (const char* cell : {"local-s0", "sync-s0", "local-s1", "sync-s1"}) {
    CAPTURE(cell);
    CHECK(scalars(place, cell) == scalars(whole, cell));
  }
}

TEST_CASE("compare --images-per-device draws a curve, each computation of which is trained once") {
  const ComparisonPlace place;
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"compare",    place.config, "-o",
                                       place.output, "-s",         "batch.global=4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const auto curve = [&](const std::string& images) {
    return with({"--modes", "local,sync,group,renorm", "--images-per-device", images, "--seeds",
                 "2", "-d", "cpu:1", "-s", "bn.groups=4", "-s", "bn.renorm_warmup=0.1"});
  };
  Process process(curve("1,2,4"));
  REQUIRE(process.wait_for("[3/14] sync seed 0: training"));
  process.send(SIGINT);
  CHECK(process.wait().exit_code == 130);
  const Outcome outcome = run_lockstep(curve("1,2,4"));
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  check_contains(outcome.out, "[1/14] local(1) seed 0: done before");
  check_contains(outcome.out, "  local(1): cpu:1, 4 slices");
  check_contains(outcome.out, " runs to train, by 3 steps and an evaluation of ");
  check_contains(outcome.out, "| images per device |");
  check_contains(outcome.out, "sync - local(2) = ");
  CHECK_FALSE(std::filesystem::exists(place.cell("local-n4-s0")));  // it is sync

  // Two of the cells on devices, to the byte.
  const auto on_devices = [&](const std::string& devices, const std::string& mode) {
    const std::string run = (place.folder.path() / mode).string();
    REQUIRE(run_lockstep({"train", place.config, "-d", devices, "-s", "bn.mode=" + mode, "-s",
                          "batch.global=4", "-s", "bn.renorm_warmup=0.1", "--seed", "1", "-o", run})
                .exit_code == 0);
    return read_text(run + "/ckpt/last.safetensors");
  };
  const std::string last = "/ckpt/last.safetensors";
  CHECK(on_devices("cpu:4", "local") == read_text(place.cell("local-n1-s1") + last));
  CHECK(on_devices("cpu:2", "renorm") == read_text(place.cell("renorm-n2-s1") + last));
  CHECK(on_devices("cpu:4", "sync") == read_text(place.cell("sync-s1") + last));
  CHECK(read_text(place.cell("local-n2-s1") + last) != read_text(place.cell("sync-s1") + last));

  // Its folder is the curve again, and more numbers are trained beside what is there.
  const std::string json = read_text(place.cell("comparison.json"));
  CHECK(Json::parse(json)["curve"]["images_per_device"] == Json{1, 2, 4});
  CHECK(Json::parse(json)["curve"]["lines"][4]["points"][0]["cell"] == "local(1) by own");
  CHECK(Json::parse(json)["curve"]["beyond_own"][0]["b"] == "local(1) by own");
  CHECK(Json::parse(json)["warnings"].empty());
  CHECK(place.from_output(run_lockstep({"compare", place.output, "--json"}).out) == json);
  check_contains(read_text(place.cell("report.html")), "<h2 id=\"images-per-device\">");
  const Outcome figures = run_lockstep({"report", place.output, "--no-images", "--figures",
                                        place.cell("figures"), "-o", place.cell("again.html")});
  CHECK(figures.exit_code == 0);
  check_contains(read_text(place.cell("figures/score_over_images.svg")), ">any</text>");
  check_contains(run_lockstep(curve("4,1,2")).out, "all runs are done");

  const Outcome uneven = run_lockstep(curve("3"));
  CHECK(uneven.exit_code == 2);
  check_contains(uneven.err, "cannot be cut into slices of 3; possible are 1, 2, 4");
  CHECK(run_lockstep(curve("two")).exit_code == 2);
  const Outcome folders = run_lockstep({"compare", place.output, "--images-per-device", "2"});
  CHECK(folders.exit_code == 2);
  check_contains(folders.err, "--images-per-device goes with a configuration to train");
}

TEST_CASE("compare sync:top:K: some layers, which the runs, the tables and the report name") {
  const ComparisonPlace place;
  const std::vector<std::string> command = place.compare("local,sync:top:2,sync", {"--no-images"});
  const Outcome outcome = run_lockstep(command);
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const Json layers =
      Json::parse(
          run_lockstep({"diagnose", place.config, "-d", "cpu:1", "--top", "2", "--json"}).out)
          .at("sync_layers");
  const std::string first = layers[0], second = layers[1];
  check_contains(outcome.out, "  sync:top:2: cpu:2, synchronized: " + first + ", " + second);
  check_contains(outcome.out, "sync:top:2 - local = ");
  check_contains(outcome.out, "sync:top:2 synchronizes " + first + ", " + second + "; its other");
  check_contains(read_text(place.cell("sync-top2-s0") + "/config.toml"),
                 "sync_layers = [\"" + first + "\", \"" + second + "\"]");
  const std::string json = read_text(place.cell("comparison.json"));
  CHECK(Json::parse(json)["modes"][1]["mode"] == "sync:top:2");
  CHECK(Json::parse(json)["modes"][1]["sync_layers"] == layers);
  CHECK(Json::parse(json)["warnings"].empty());
  check_contains(read_text(place.cell("report.html")), "sync:top:2 synchronizes " + first);
  check_contains(run_lockstep(command).out, "[5/6] sync:top:2 seed 1: done before");
  std::vector<std::string> reading{"compare"};
  for (const char* mode : {"local", "sync-top2", "sync"}) {
    for (const char* seed : {"-s0", "-s1"}) reading.push_back(place.cell(std::string(mode) + seed));
  }
  reading.emplace_back("--json");
  CHECK(place.from_output(run_lockstep(reading).out) == json);

  // Who resumes a cell by hand resumes that cell.
  const std::string cell = place.cell("sync-top2-s1");
  REQUIRE(run_lockstep({"train", cell + "/config.toml", "-d", "cpu:2", "-o", cell, "--resume"})
              .exit_code == 0);
  const Json resumed = Json::parse(run_lockstep(reading).out);
  CHECK(resumed["modes"].size() == 3);
  CHECK(resumed["modes"][1]["runs"].size() == 2);

  // As the configuration says it, for one training.
  const std::string run = (place.folder.path() / "run").string();
  REQUIRE(run_lockstep({"train", place.config, "-d", "cpu:2", "-s", "bn.mode=sync", "-s",
                        "bn.sync_layers=top:2", "-o", run})
              .exit_code == 0);
  const std::string last = "/ckpt/last.safetensors";
  CHECK(read_text(run + last) == read_text(place.cell("sync-top2-s0") + last));
  check_contains(read_text(run + "/run.log"),
                 " at " + first + ", " + second + "; other layers are");

  const std::vector<std::string> top{"-d",           "cpu:2", "-s",
                                     "bn.mode=sync", "-s",    "bn.sync_layers=top:2"};
  const auto with_top = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), top.begin(), top.end());
    return run_lockstep(arguments);
  };
  check_contains(with_top({"plan", place.config}).out, "mode is sync: 4 exchanges per step");
  CHECK(with_top({"bench", "step", place.config, "--iters", "2"}).exit_code == 0);

  const Outcome many = run_lockstep(place.compare("sync:top:7"));
  CHECK(many.exit_code == 2);
  check_contains(many.err, "--modes sync:top:7: the network has 6 layers");
}

TEST_CASE("compare reads finished runs and changes nothing") {
  const ComparisonPlace place;
  REQUIRE(run_lockstep(place.compare("local,sync", {"-s", "run.eval_own=false"})).exit_code == 0);
  const Outcome outcome =
      run_lockstep({"compare", place.cell("local-s0"), place.cell("sync-s0"), "--json"});
  CAPTURE(outcome.err);
  CHECK(outcome.exit_code == 0);
  const Json report = Json::parse(outcome.out);
  CHECK(report["pairs"][0]["seeds"].size() == 1);
  CHECK(report["rows"].size() == 2);  // nobody evaluated by own statistics
  CHECK(report["warnings"].empty());
  const Outcome all = run_lockstep({"compare", place.output, "--json"});
  CHECK(place.from_output(all.out) == read_text(place.cell("comparison.json")));
  CHECK(Json::parse(all.out)["modes"][0]["runs"]["1"] == place.cell("local-s1"));
  const std::string apart = place.cell("new/folder");
  const Outcome written = run_lockstep(
      {"compare", place.cell("local-s0"), place.cell("sync-s0"), "--no-images", "-o", apart});
  CHECK(written.exit_code == 0);
  CHECK(place.from_output(read_text(apart + "/comparison.json"), "../../") ==
        place.from_output(outcome.out));
  const Outcome twice = run_lockstep({"compare", place.cell("local-s0"), place.cell("local-s0")});
  CHECK(twice.exit_code == 2);
  check_contains(twice.err, "two runs of mode local with seed 0");
  const Outcome nothing = run_lockstep({"compare", place.folder.path().string()});
  CHECK(nothing.exit_code == 3);
  check_contains(nothing.err, "no finished run");
}

TEST_CASE("bench prints figures for scripts") {
  const ComparisonPlace place;
  const Outcome step = run_lockstep({"bench", "step", place.config, "-d", "cpu:2", "-s",
                                     "bn.mode=sync", "--iters", "3", "--json"});
  CAPTURE(step.err);
  REQUIRE(step.exit_code == 0);
  const Json figures = Json::parse(step.out);
  CHECK(figures["ms_per_step"]["n"] == 3);
  CHECK(figures["global_batch"] == 4);
  CHECK(figures["images_per_second"].get<double>() > 0);
  CHECK(figures["phases_ms"].contains("batch_norm_wait"));
  const Outcome exchange =
      run_lockstep({"bench", "exchange", "-d", "cpu:2", "--iters", "2", "--json"});
  CHECK(exchange.exit_code == 0);
  CHECK(Json::parse(exchange.out)["cases"].size() == 6);
  CHECK(run_lockstep({"bench", "sleep"}).exit_code == 2);
}

TEST_CASE("bench step --against times two trainings in turns") {
  const ComparisonPlace place;
  std::vector<std::string> command{"bench",
                                   "step",
                                   place.config,
                                   "-d",
                                   "cpu:2",
                                   "--iters",
                                   "3",
                                   "-s",
                                   "bn.mode=sync",
                                   "--against",
                                   "bn.mode=local",
                                   "--against",
                                   "batch.global=2"};
  const Outcome table = run_lockstep(command);
  REQUIRE(table.exit_code == 0);
  check_contains(table.out, "Against bn.mode=local batch.global=2:\n");
  check_contains(table.out, "(of 3 pairs");
  command.push_back("--json");
  const Outcome outcome = run_lockstep(command);
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const Json figures = Json::parse(outcome.out);
  const Json& other = figures["against"];
  CHECK(figures["bn_mode"] == "sync");
  CHECK(other["bn_mode"] == "local");
  CHECK(figures["global_batch"] == 4);
  CHECK(other["global_batch"] == 2);
  CHECK(other["settings"] == Json{"bn.mode=local", "batch.global=2"});
  for (const Json& each : {figures, other}) CHECK(each["ms_per_step"]["n"] == 3);
  CHECK(figures["ratio"]["n"] == 3);
  CHECK(figures["ratio"]["median"].get<double>() > 0);
}

TEST_CASE("bench layers names every layer, and its sums are consistent") {
  const ComparisonPlace place;
  const Outcome outcome =
      run_lockstep({"bench", "layers", place.config, "-d", "cpu:1", "--iters", "3", "--json"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const Json figures = Json::parse(outcome.out);
  const double step = figures["ms_per_step"]["median"];
  std::map<std::string, Json> rows;
  double sum = 0;
  double slowest = figures["rows"][0]["ms"]["median"];
  for (const Json& row : figures["rows"]) {
    const double ms = row["ms"]["median"];
    CHECK(row["ms"]["n"] == 3);
    CHECK(ms <= slowest);
    slowest = ms;
    sum += ms;
    CHECK(row["share_of_step"].get<double>() == doctest::Approx(ms / step));
    rows[row["layer"].get<std::string>() + " " + row["pass"].get<std::string>()] = row;
  }
  CHECK(figures["sum_ms"].get<double>() == doctest::Approx(sum));
  CHECK(figures["sum_share_of_step"].get<double>() == doctest::Approx(sum / step));
  // encoder 2, bottom 2, decoder 2 convolutions with BatchNorm; pool, upsample, concat; the head.
  CHECK(rows.size() == 2 * (6 + 6 + 3 + 1) + 3);
  CHECK(rows.count("(loss and its gradient) ") == 1);

  // Batch 2 of 32x32, 4 channels in fp32; the convolution reads 3 channels, with 3x3 kernels.
  const double tensor = 2 * 32 * 32 * 4 * 4;
  const Json& norm = rows.at("encoder.0.0.bn forward");
  CHECK(norm["bytes"] == 3 * tensor);
  CHECK(rows.at("encoder.0.0.bn backward")["bytes"] == 5 * tensor);
  CHECK(norm["flops"] == 0);
  CHECK(norm["gflop_per_s"].is_null());
  CHECK(norm["gb_per_s"].get<double>() ==
        doctest::Approx(3 * tensor / norm["ms"]["median"].get<double>() / 1e6));
  CHECK(norm["share_of_copy"].get<double>() ==
        doctest::Approx(norm["gb_per_s"].get<double>() / figures["copy_gb_per_s"].get<double>()));
  const double products = 2.0 * 32 * 32 * 4 * 3 * 9;
  const Json& first = rows.at("encoder.0.0.conv forward");
  CHECK(first["flops"] == 2 * products);
  CHECK(first["bytes"] == tensor + tensor * 3 / 4 + 4 * 3 * 9 * 4);
  CHECK(first["share_of_peak"].get<double>() ==
        doctest::Approx(first["gflop_per_s"].get<double>() /
                        figures["peak_gflop_per_s"].get<double>()));
  // Nobody needs the gradient of the images.
  CHECK(rows.at("encoder.0.0.conv backward")["flops"] == 2 * products);
}

TEST_CASE("bench layers --eval times the forward pass of one image") {
  const ComparisonPlace place;
  const Outcome outcome = run_lockstep(
      {"bench", "layers", place.config, "-d", "cpu:1", "--eval", "--iters", "2", "--json"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const Json figures = Json::parse(outcome.out);
  CHECK(figures["eval"] == true);
  CHECK(figures["global_batch"] == 1);
  CHECK(figures["rows"].size() == 6 + 6 + 3 + 1 + 2);
  double forward = 0;
  for (const Json& row : figures["rows"]) {
    CHECK(row["pass"] != "backward");
    if (row["pass"] == "forward") forward += row["ms"]["p10"].get<double>();
    if (row["layer"] == "encoder.0.0.bn") CHECK(row["bytes"] == 2 * 32 * 32 * 4 * 4);
  }
  CHECK(figures["ms_forward"]["p90"].get<double>() >= forward);
  const Outcome step = run_lockstep({"bench", "step", place.config, "--eval"});
  CHECK(step.exit_code == 2);
  check_contains(step.err, "--eval goes with bench layers, not with bench step");
}

TEST_CASE("bench layers prints a table, and says what it does not measure") {
  const ComparisonPlace place;
  const Outcome table = run_lockstep(
      {"bench", "layers", place.config, "-d", "cpu:1", "-s", "bn.mode=sync", "--iters", "1"});
  CAPTURE(table.err);
  CHECK(table.exit_code == 0);
  for (const char* part : {"| layer ", "% of copy", "% of peak", "| decoder.0.1.bn ", "| backward ",
                           "| head ", "| sum ", "| step "}) {
    check_contains(table.out, part);
  }
  const Outcome two = run_lockstep({"bench", "layers", place.config, "-d", "cpu:2"});
  CHECK(two.exit_code == 2);
  check_contains(two.err, "bench layers looks at one device, got 2; use -d cpu:1 or -d cuda:0");
  const Outcome none = run_lockstep({"bench", "layers"});
  CHECK(none.exit_code == 2);
  check_contains(none.err, "bench layers needs a configuration file");
}

}  // namespace lockstep
