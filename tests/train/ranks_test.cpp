// What a run tells of each of its ranks.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/core/check.h"
#include "run/report_text.h"
#include "train/runs.h"
#include "train/step_meter.h"

namespace lockstep {
namespace {

using nlohmann::json;
using test::check_same_run;
using test::lines_of;
using test::read_text;
using test::Runs;

std::vector<json> events_of_type(const RunFolder& run, const std::string& type) {
  std::vector<json> found;
  for (const json& event : lines_of(run.events())) {
    if (event.at("type") == type) found.push_back(event);
  }
  return found;
}

std::vector<std::int64_t> steps_of(const std::vector<json>& lines) {
  std::vector<std::int64_t> steps;
  for (const json& line : lines) steps.push_back(line.at("step"));
  return steps;
}

/// [step][rank] of the lines `rank`.
std::map<std::int64_t, std::vector<std::string>> by_step(const RunFolder& run, const char* key) {
  std::map<std::int64_t, std::vector<std::string>> values;
  for (const json& line : events_of_type(run, "rank")) {
    values[line.at("step")].push_back(line.at(key));
  }
  return values;
}

RankStep rank_step(double loss, double compute, std::size_t memory) {
  const StepTimes times{.compute = compute, .batch_norm_wait = 1, .gradient_exchange = 2};
  return {loss, times, memory, 2 * memory};
}

}  // namespace

TEST_CASE("the ranks' steps are added up to means, memory is the last one") {
  const std::vector<Device> devices = parse_devices("cpu:2");
  RankTotals totals(devices);
  CHECK(totals.reports().empty());
  totals.add(std::vector{rank_step(1, 4, 100), rank_step(2, 8, 10)});
  totals.add(std::vector{rank_step(2, 6, 300), rank_step(4, 8, 20)});
  for (int again = 0; again < 2; ++again) {
    const std::vector<RankReport> reports = totals.reports();
    REQUIRE(reports.size() == 2);
    CHECK(reports[1].rank == 1);
    CHECK(reports[1].device == "cpu:1");
    CHECK(reports[0].loss == 1.5);
    CHECK(reports[1].loss == 3);
    CHECK(reports[0].times.compute == 5);
    CHECK(reports[0].times.batch_norm_wait == 1);
    CHECK(reports[0].times.gradient_exchange == 2);
    CHECK(reports[0].memory_bytes == 300);
    CHECK(reports[1].memory_bytes == 20);
    CHECK(reports[1].peak_memory_bytes == 40);
  }
  totals.clear();
  CHECK(totals.reports().empty());
  totals.add(std::vector{rank_step(7, 1, 5), rank_step(7, 1, 5)});
  CHECK(totals.reports()[1].loss == 7);
  CHECK(totals.reports()[1].device == "cpu:1");
  CHECK_THROWS_AS(totals.add(std::vector{rank_step(7, 1, 5)}), Error);
}

TEST_CASE("the table of ranks has a line per rank, and waiting only where threads wait") {
  std::vector<RankReport> ranks(2);
  ranks[0] = {0, "cuda:0", 0.5, {.compute = 0.0125}, 3 << 19, 5 << 20};
  ranks[1] = {1, "cuda:1", 0.5, {.compute = 0.0115}, 1 << 20, 2 << 20};
  CHECK(format_ranks(ranks) ==
        "  rank  device       compute       memory      at most\n"
        "     0  cuda:0       12.5 ms       1.5 MB       5.0 MB\n"
        "     1  cuda:1       11.5 ms       1.0 MB       2.0 MB\n");
  ranks[1].times.batch_norm_wait = 0.001;
  const std::string text = format_ranks(ranks);
  CHECK(text.find("   compute      bn wait     exchange       memory") != std::string::npos);
  CHECK(text.find(" 11.5 ms       1.0 ms       0.0 ms       1.0 MB") != std::string::npos);
}

TEST_CASE("every log step says what each rank did, and their losses add up to the step's") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"bn.mode=sync"}));
  std::map<std::int64_t, double> losses;
  std::map<std::int64_t, int> ranks;
  for (const json& line : events_of_type(runs.folder("a"), "rank")) {
    const std::int64_t step = line.at("step");
    CHECK(line.at("rank") == ranks[step]++);
    CHECK(line.at("device") == "cpu:" + line.at("rank").dump());
    losses[step] += line.at("loss").get<double>();
    CHECK(line.at("compute").get<double>() > 0);
    CHECK(line.at("bn_wait").get<double>() >= 0);
    CHECK(line.at("exchange").get<double>() >= 0);
    CHECK(line.at("memory_bytes").get<std::int64_t>() > 0);
    CHECK(line.at("memory_bytes") <= line.at("peak_memory_bytes"));
  }
  CHECK(ranks == std::map<std::int64_t, int>{{3, 4}, {6, 4}, {9, 4}, {10, 4}});
  for (const json& line : lines_of(runs.folder("a").scalars())) {
    if (line.at("mode") != "train") continue;
    CHECK(losses[line.at("step")] == doctest::Approx(line.at("loss").get<double>()));
  }

  const TrainSummary read = read_summary(runs.folder("a").root).value();
  REQUIRE(summary.ranks.size() == 4);
  REQUIRE(read.ranks.size() == 4);
  double compute = 0;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    compute += summary.ranks[rank].times.compute / 4;
    CHECK(read.ranks[rank].device == summary.ranks[rank].device);
    CHECK(read.ranks[rank].loss == summary.ranks[rank].loss);
    CHECK(read.ranks[rank].times.gradient_exchange == summary.ranks[rank].times.gradient_exchange);
    CHECK(read.ranks[rank].peak_memory_bytes == summary.ranks[rank].peak_memory_bytes);
  }
  CHECK(compute == doctest::Approx(summary.times.compute));  // of the same steps
  CHECK(read_text(runs.folder("a").log()).find(format_ranks(summary.ranks)) != std::string::npos);
}

TEST_CASE("memory at the end is that of evaluation, too") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"run.val_every=0"}));
  for (const json& line : events_of_type(runs.folder("a"), "rank")) {
    const RankReport& end = summary.ranks[line.at("rank").get<std::size_t>()];
    CHECK(line.at("memory_bytes") < end.memory_bytes);
    CHECK(line.at("peak_memory_bytes") < end.peak_memory_bytes);
  }
}

TEST_CASE("one device is told of in the files alone") {
  const Runs runs;
  TrainRequest request = runs.request("a", {"run.max_iters=1"});
  request.devices = "cpu:1";
  train(request);
  CHECK(events_of_type(runs.folder("a"), "rank").size() == 1);
  CHECK(read_text(runs.folder("a").log()).find("rank  device") == std::string::npos);
}

TEST_CASE("rank logs have the events of their rank, and change nothing else") {
  const Runs runs;
  train(runs.request("plain"));
  train(runs.request("a", {"run.rank_logs=true"}));
  check_same_run(runs.folder("plain"), runs.folder("a"));
  CHECK_FALSE(std::filesystem::exists(runs.folder("plain").rank_logs()));
  std::vector<std::vector<json>> expected(4);
  for (const json& line : events_of_type(runs.folder("a"), "rank")) {
    expected[line.at("rank").get<std::size_t>()].push_back(line);
  }
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(steps_of(expected[static_cast<std::size_t>(rank)]) ==
          std::vector<std::int64_t>{3, 6, 9, 10});
    CHECK(lines_of(runs.folder("a").rank_log(rank)) == expected[static_cast<std::size_t>(rank)]);
  }
  CHECK_FALSE(std::filesystem::exists(runs.folder("a").rank_log(4)));
}

TEST_CASE("what is logged of BatchNorm changes nothing but events.jsonl") {
  const Runs runs;
  const std::vector<std::pair<std::string, std::vector<std::size_t>>> lines{
      // bn (6 layers), bn_part (of 4 ranks each), callbacks, in 4 log steps
      {"off", {0, 0, 0}},
      {"layers", {24, 0, 0}},
      {"devices", {24, 96, 4}},
      {"full", {24, 96, 4}}};
  for (const auto& [wanted, counts] : lines) {
    CAPTURE(wanted);
    const TrainSummary summary = train(runs.request(wanted, {"run.log_bn=" + wanted}));
    const RunFolder run = runs.folder(wanted);
    CHECK(events_of_type(run, "bn").size() == counts[0]);
    CHECK(events_of_type(run, "bn_part").size() == counts[1]);
    CHECK(events_of_type(run, "callbacks").size() == counts[2]);
    for (const json& line : events_of_type(run, "rank")) {
      CHECK(line.contains("weights_hash") == (counts[1] > 0));
    }
    CHECK(summary.batch_norms.size() == counts[0] / 4);
    CHECK(summary.ranks.front().weights_hash.empty() == (counts[0] == 0));
    check_same_run(runs.folder("off"), run);
  }
  CHECK(load_config(runs.folder("full").config(), {}).run.log_bn == BatchNormLog::kFull);
  CHECK(runs.request("default").config.run.log_bn == BatchNormLog::kLayers);
}

TEST_CASE("batch statistics of every device and layer") {
  const Runs runs;
  train(runs.request("a", {"bn.mode=sync", "run.log_bn=full", "run.rank_logs=true"}));
  const RunFolder run = runs.folder("a");
  std::map<std::pair<std::int64_t, std::string>, double> within;
  for (const json& line : events_of_type(run, "bn_part")) {
    const std::int64_t count = line.at("count");
    CHECK(line.at("slice") == 0);
    if (line.at("rank") == 3) {  // 6 images over 4 devices: 2, 2, 2, 0
      CHECK(count == 0);
      CHECK(line.at("mean").is_null());
      CHECK(line.at("var").is_null());
      continue;
    }
    CHECK((count == 2 * 32 * 32 || count == 2 * 16 * 16));
    const auto means = line.at("means").get<std::vector<double>>();
    const auto vars = line.at("vars").get<std::vector<double>>();
    CHECK((means.size() == 4 || means.size() == 8));
    CHECK(line.at("mean").at("min") == *std::min_element(means.begin(), means.end()));
    CHECK(line.at("mean").at("max") == *std::max_element(means.begin(), means.end()));
    CHECK(line.at("var").at("min") == *std::min_element(vars.begin(), vars.end()));
    CHECK(line.at("var").at("max") == *std::max_element(vars.begin(), vars.end()));
    CHECK(line.at("var").at("min") >= 0);
    const double mean = line.at("var").at("mean");
    CHECK(mean == doctest::Approx(std::accumulate(vars.begin(), vars.end(), 0.0) /
                                  static_cast<double>(vars.size())));
    within[{line.at("step"), line.at("layer")}] += mean / 3;
  }
  for (const json& line : events_of_type(run, "bn")) {
    CHECK(within[{line.at("step"), line.at("layer")}] ==
          doctest::Approx(line.at("within").get<double>()).epsilon(1e-4));
  }
  CHECK(within.size() == 24);

  for (int rank = 0; rank < 4; ++rank) {
    std::vector<json> expected;
    for (const json& event : lines_of(run.events())) {
      if (event.contains("rank") && event.at("rank") == rank) expected.push_back(event);
    }
    CHECK(expected.size() == 4 + 24);
    CHECK(lines_of(run.rank_log(rank)) == expected);
  }
}

TEST_CASE("slices of virtual devices are told of one by one") {
  const Runs runs;
  train(runs.request(
      "a", {"bn.mode=virtual", "bn.virtual_devices=2", "run.log_bn=devices", "run.max_iters=1"}));
  std::map<int, int> slices;
  for (const json& line : events_of_type(runs.folder("a"), "bn_part")) {
    if (line.at("layer") != "encoder.0.0.bn") continue;
    CHECK(line.at("slice") == slices[line.at("rank")]++);
    CHECK(line.at("count") == (line.at("rank") == 3 ? 0 : 32 * 32));
    CHECK_FALSE(line.contains("means"));
  }
  CHECK(slices == std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 1}});
}

TEST_CASE("hashes tell which replicas are equal") {
  const Runs runs;
  const auto hashes = [&](const std::string& run, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"run.log_bn=devices", "batch.global=8"});
    train(runs.request(run, overrides));
    const auto weights = by_step(runs.folder(run), "weights_hash");
    CHECK(weights.size() == 4);
    for (const auto& [step, of_ranks] : weights) {
      for (const std::string& hash : of_ranks) CHECK(hash == of_ranks.front());
    }
    CHECK(weights.at(3).front() != weights.at(6).front());
    for (const json& line : events_of_type(runs.folder(run), "rank")) {
      CHECK(line.at("smallest_running_var").get<double>() >= 0);
    }
    return by_step(runs.folder(run), "statistics_hash").at(10);
  };
  const std::vector<std::string> sync = hashes("sync", {"bn.mode=sync"});
  CHECK(sync == std::vector<std::string>(4, sync[0]));
  const std::vector<std::string> groups = hashes("groups", {"bn.mode=sync", "bn.sync_group=2"});
  CHECK(groups[0] == groups[1]);
  CHECK(groups[2] == groups[3]);
  CHECK(groups[0] != groups[2]);
  std::vector<std::string> local = hashes("local", {"bn.mode=local"});
  std::sort(local.begin(), local.end());
  CHECK(std::unique(local.begin(), local.end()) == local.end());

  const auto says = [&](const std::string& run, const char* text) {
    return read_text(runs.folder(run).log()).find(text) != std::string::npos;
  };
  CHECK(says("sync", "the ranks' weights are equal, their running statistics are equal"));
  CHECK(says("local", "the ranks' weights are equal, their running statistics differ"));
  const TrainSummary read = read_summary(runs.folder("sync").root).value();
  CHECK(read.ranks[2].statistics_hash == sync[2]);
  CHECK(read.ranks[2].smallest_running_var.has_value());
}

TEST_CASE("a network without running statistics has no variance to tell of") {
  const Runs runs;
  train(runs.request("a", {"bn.track_running_stats=false", "run.log_bn=devices"}));
  for (const json& line : events_of_type(runs.folder("a"), "rank")) {
    CHECK(line.at("smallest_running_var").is_null());
  }
  CHECK_FALSE(read_summary(runs.folder("a").root)->ranks[0].smallest_running_var);
}

TEST_CASE("callbacks run once for all ranks that meet") {
  const Runs runs;
  const auto callbacks = [&](const std::string& run, std::vector<std::string> overrides) {
    overrides.push_back("run.log_bn=devices");
    train(runs.request(run, overrides));
    return events_of_type(runs.folder(run), "callbacks");
  };
  for (const json& line : callbacks("sync", {"bn.mode=sync"})) {
    const std::int64_t step = line.at("step");
    CHECK(line.at("forward") == 6 * step);  // 6 layers
    CHECK(line.at("backward") == 6 * step);
    CHECK(line.at("barrier") == 2 * step);
  }
  for (const json& line : callbacks("groups", {"bn.mode=sync", "bn.sync_group=2"})) {
    CHECK(line.at("forward") == 2 * 6 * line.at("step").get<std::int64_t>());
  }
  for (const json& line : callbacks("local", {"bn.mode=local"})) {
    CHECK(line.at("forward") == 0);
    CHECK(line.at("barrier") == 2 * line.at("step").get<std::int64_t>());
  }
}

TEST_CASE("rank logs of a resumed run have every step once") {
  const Runs runs;
  TrainRequest cut = runs.request("a", {"run.rank_logs=true"});
  cut.fault = "throw:rank=2,step=7";  // the last checkpoint is of step 4, the last line of step 6
  CHECK_THROWS_AS(train(cut), ReplicaError);
  CHECK(steps_of(lines_of(runs.folder("a").rank_log(1))) == std::vector<std::int64_t>{3, 6});
  cut.fault.clear();
  cut.resume = "auto";
  train(cut);
  CHECK(steps_of(lines_of(runs.folder("a").rank_log(1))) == std::vector<std::int64_t>{3, 6, 9, 10});
}

}  // namespace lockstep
