// What a run tells of each of its ranks.

#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"
#include "train/rank_report.h"
#include "train/report_text.h"
#include "train/runs.h"

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

RankStep rank_step(double loss, double compute, std::size_t memory) {
  return {loss, {.compute = compute, .batch_norm_wait = 1, .gradient_exchange = 2}, memory, memory};
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
    CHECK(reports[1].peak_memory_bytes == 20);
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
