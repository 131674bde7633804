// lockstep selftest as a user runs it.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "app/process.h"

namespace lockstep::test {

TEST_CASE("selftest: every check is ok, and JSON has them all") {
  const Outcome outcome = run_lockstep({"selftest", "-d", "cpu:4", "--json"});
  INFO(outcome.out, outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const auto root = nlohmann::json::parse(outcome.out);
  CHECK(root["devices"] == "cpu:4");
  CHECK(root["ok"] == true);
  CHECK(root["failed"] == 0);
  CHECK(root["rows"].size() == 92);
  std::set<std::string> names;
  std::map<std::string, int> groups;
  for (const auto& row : root["rows"]) {
    CAPTURE(row.dump());
    CHECK(row["ok"] == true);
    CHECK(!row["compared"].get<std::string>().empty());
    const std::string group = row["group"];
    ++groups[group];
    names.insert(group + ": " + row["name"].get<std::string>());
    if (group == "failures") {
      CHECK(row["max_rel_error"].is_null());  // nothing to measure
      continue;
    }
    // Differences in fp32 have errors, or nothing was compared.
    if (group == "gradients") CHECK(row["max_abs_error"].get<double>() > 0);
    CHECK(row["max_rel_error"].get<double>() <= row["tolerance"].get<double>());
  }
  CHECK(names.size() == root["rows"].size());
  CHECK(groups == std::map<std::string, int>{{"layers", 12},
                                             {"gradients", 35},
                                             {"batch_norm", 18},
                                             {"exchange", 4},
                                             {"rival_norms", 6},
                                             {"training", 13},
                                             {"failures", 4}});
}

TEST_CASE("selftest: the table begins with the devices and ends with the verdict") {
  const Outcome outcome = run_lockstep({"selftest", "-d", "cpu:5"});
  INFO(outcome.out, outcome.err);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out.starts_with("devices: cpu:5 (as asked)\nbackend: processor: "));
  CHECK(outcome.out.find("sync on all given devices = on one") != std::string::npos);
  CHECK(outcome.out.find("\nall 93 checks are ok (") != std::string::npos);
  CHECK(outcome.out.find("FAILED") == std::string::npos);
}

TEST_CASE("selftest: devices that are not there are an error") {
  const Outcome outcome = run_lockstep({"selftest", "-d", "cpu:0"});
  CHECK(outcome.exit_code == 2);
  CHECK(outcome.out.empty());
}

}  // namespace lockstep::test
