// What can be typed, from outside: which words are taken as what, and which are refused.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"
#include "cli/tiny_config.h"
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

}  // namespace lockstep
