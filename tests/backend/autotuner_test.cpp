#include "backend/conv/autotuner.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const fs::path& path) {
  std::ifstream stream(path);
  return json::parse(stream);
}

/// A question whose clock says `fastest`; counts how often it was asked.
struct Question {
  std::string machine, problem, fastest;
  std::set<std::string> usable{"a", "b"};
  std::optional<std::string> forced = {};
  int timed = 0;

  std::string ask(Autotuner& tuner) {
    ChoiceRequest request;
    request.machine = machine;
    request.problem = problem;
    request.forced = forced;
    request.usable = [&](const std::string& name) { return usable.contains(name); };
    request.rule = [] { return std::string("rule"); };
    request.measure = [&] {
      ++timed;
      return Measurement{fastest, {{"a", 1.5}, {"b", 2.5}}};
    };
    return tuner.choose(request).chosen;
  }
};

TEST_CASE("the clock decides once, for this process and for later ones") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "new" / "folders" / "autotune.json";
  Autotuner first(path);
  Question question{"H100", "conv", "a"};
  CHECK(question.ask(first) == "a");
  CHECK(question.ask(first) == "a");
  CHECK(question.timed == 1);
  CHECK(first.all_kept());
  Autotuner second(path);  // as in another process
  Question later{"H100", "conv", "b"};
  CHECK(later.ask(second) == "a");
  CHECK(later.timed == 0);
  CHECK(second.choices() == std::vector<Choice>{{"H100", "conv", "a", ChoiceOrigin::kFile, 1.5}});
  CHECK(first.choices() ==
        std::vector<Choice>{{"H100", "conv", "a", ChoiceOrigin::kMeasured, 1.5}});
  Question elsewhere{"A100", "conv", "b"}, other{"H100", "pool", "b"};
  CHECK(elsewhere.ask(second) == "b");
  CHECK(other.ask(second) == "b");
  CHECK(second.kept("H100") ==
        std::vector<std::pair<std::string, std::string>>{{"conv", "a"}, {"pool", "b"}});
  const json entry = read_json(path)["choices"]["H100"]["conv"];
  CHECK(entry["milliseconds"]["a"] == 1.5);
  for (const auto& file : fs::directory_iterator(path.parent_path())) {
    CHECK(file.path().extension() != ".tmp");
  }
}

TEST_CASE("a file is read again when another process has written it, and not before") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "autotune.json";
  Autotuner own(path), other(path);
  Question{"cpu", "conv", "a"}.ask(own);
  Question later{"cpu", "pool", "a"};
  later.ask(other);
  CHECK(later.ask(own) == "a");
  CHECK(own.choices().back().origin == ChoiceOrigin::kFile);

  // Another choice in the file as it is, which nobody writes and nothing tells.
  Autotuner third(path);
  Question{"cpu", "conv", "b"}.ask(third);
  const fs::file_time_type written = fs::last_write_time(path);
  std::string text = read_json(path).dump(1) + '\n';
  const std::size_t choice = text.find("\"choice\": \"a\"", text.find("\"pool\""));
  REQUIRE(choice != std::string::npos);
  text[choice + 11] = 'b';
  std::fstream(path, std::ios::in | std::ios::out) << text;
  fs::last_write_time(path, written);
  CHECK(Question{"cpu", "pool", "b"}.ask(third) == "a");
  fs::last_write_time(path, written + std::chrono::seconds(1));
  Autotuner fourth(path);
  CHECK(Question{"cpu", "pool", "a"}.ask(fourth) == "b");
}

TEST_CASE("a choice that this build cannot use is made anew and replaced") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "autotune.json";
  Autotuner first(path), second(path), third(path);
  Question with_a{"cpu", "conv", "a"};
  with_a.ask(first);
  Question without_a{"cpu", "conv", "b", {"b"}};
  CHECK(without_a.ask(second) == "b");
  CHECK(without_a.timed == 1);
  CHECK(with_a.ask(third) == "b");
}

TEST_CASE("of two processes that time at once the first one to finish counts") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "autotune.json";
  Autotuner slow(path), fast(path);
  ChoiceRequest request{"cpu", "conv", {}, [](const std::string&) { return true; }, {}, {}};
  request.measure = [&] {
    Question{"cpu", "conv", "b"}.ask(fast);  // meanwhile
    return Measurement{"a", {{"a", 1}}};
  };
  CHECK(slow.choose(request).chosen == "b");
}

TEST_CASE("what nothing was timed for is not kept, and neither is what nobody may time") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "autotune.json";
  const auto all = [](const std::string&) { return true; };
  ChoiceRequest request{"cpu", "conv", {}, all, [] { return std::string("rule"); }, {}};
  Autotuner first(path);
  CHECK(first.choose(request).chosen == "rule");
  request.problem = "another";
  request.measure = [] { return Measurement{"first of the list", {}}; };
  const Choice untimed = first.choose(request);
  CHECK(untimed.chosen == "first of the list");
  CHECK(untimed.origin == ChoiceOrigin::kRule);
  CHECK_FALSE(fs::exists(path));
  Autotuner second(path);
  Question{"cpu", "conv", "a"}.ask(second);
  request.problem = "conv", request.measure = nullptr;
  CHECK(Autotuner(path).choose(request).chosen == "a");  // what another process has timed
}

TEST_CASE("another process's choices take the place of one's own, but of forced ones") {
  const TemporaryFolder folder;
  Autotuner tuner(folder.path() / "autotune.json");
  Question question{"cpu", "conv", "a"}, other{"cpu", "other", "a"}, forced{"cpu", "forced", "a"};
  forced.forced = "a";
  for (Question* each : {&question, &other, &forced}) CHECK(each->ask(tuner) == "a");
  const std::vector<Choice> theirs = {{"cpu", "conv", "b"}, {"cpu", "forced", "b"}};
  tuner.adopt(theirs);
  CHECK(question.ask(tuner) == "b");
  CHECK(other.ask(tuner) == "a");
  CHECK(forced.ask(tuner) == "a");
  for (const Choice& choice : tuner.choices()) {
    CHECK((choice.origin == ChoiceOrigin::kAdopted) == (choice.chosen == "b"));
  }
  Autotuner later(folder.path() / "autotune.json");
  CHECK(question.ask(later) == "a");  // what this machine's clock said stays
}

TEST_CASE("what the user forces is neither timed nor kept") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "autotune.json";
  Autotuner tuner(path);
  Question question{"cpu", "conv", "a"};
  question.forced = "b";
  CHECK(question.ask(tuner) == "b");
  CHECK(question.timed == 0);
  CHECK(tuner.choices().back().origin == ChoiceOrigin::kForced);
  CHECK_FALSE(fs::exists(path));
  question.forced.reset();
  CHECK(question.ask(tuner) == "a");
  question.forced = "b";
  CHECK(question.ask(tuner) == "b");
}

TEST_CASE("without a file rules decide, and nothing is timed") {
  Autotuner tuner({});
  Question question{"cpu", "conv", "a"};
  CHECK(question.ask(tuner) == "rule");
  CHECK(question.timed == 0);
  CHECK(tuner.choices().front().origin == ChoiceOrigin::kRule);
  CHECK(tuner.kept("cpu").empty());
}

TEST_CASE("a damaged file is no file, and is replaced") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "autotune.json";
  Autotuner writer(path);
  Question{"cpu", "conv", "a"}.ask(writer);
  const json whole = read_json(path);
  const std::string text = whole.dump();
  std::vector<std::string> damaged{
      "", "[]", "3", "{", text.substr(0, text.size() / 2), std::string("\0\xff\x01", 3)};
  const auto with = [&](const std::string& pointer, const json& value) {
    json changed = whole;
    changed[json::json_pointer(pointer)] = value;
    damaged.push_back(changed.dump());
  };
  with("/version", 0);
  with("/version", "1");
  with("/choices", json::array({1}));
  with("/choices/cpu", 7);
  with("/choices/cpu/conv", nullptr);
  with("/choices/cpu/conv/choice", 3);
  with("/choices/cpu/conv/choice", "unknown");
  for (const std::string& content : damaged) {
    CAPTURE(content);
    std::ofstream(path) << content;
    Autotuner reader(path), later(path);
    Question question{"cpu", "conv", "b"};
    CHECK(reader.kept("gpu").empty());
    CHECK(question.ask(reader) == "b");
    CHECK(question.timed == 1);
    CHECK(question.ask(later) == "b");
    CHECK(question.timed == 1);
  }
}

TEST_CASE("where no file can be, choices hold for the process") {
  const TemporaryFolder folder;
  folder.write("file", "");
  fs::create_directory(folder.path() / "autotune.json");
  for (const fs::path& path : {folder.path() / "file" / "autotune.json",
                               folder.path() / "autotune.json", fs::path("/proc/autotune.json")}) {
    CAPTURE(path.string());
    Autotuner tuner(path), other(path);
    Question question{"cpu", "conv", "a"};
    CHECK(question.ask(tuner) == "a");
    CHECK(question.ask(tuner) == "a");
    CHECK(question.timed == 1);
    CHECK_FALSE(tuner.all_kept());
    CHECK(question.ask(other) == "a");
    CHECK(question.timed == 2);
  }
}

TEST_CASE("threads that ask at once get one answer, of one clock") {
  const TemporaryFolder folder;
  Autotuner tuner(folder.path() / "autotune.json");
  std::atomic<int> timed = 0;
  std::vector<std::string> answers(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] {
      ChoiceRequest request{"cpu", "conv", {}, [](const std::string&) { return true; }, {}, {}};
      request.measure = [&] { return Measurement{std::to_string(timed++), {}}; };
      answers[i] = tuner.choose(request).chosen;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(timed == 1);
  CHECK(answers == std::vector<std::string>(8, "0"));
}

TEST_CASE("an answer without a clock holds until somebody has one") {
  const TemporaryFolder folder;
  Autotuner tuner(folder.path() / "autotune.json");
  ChoiceRequest without{"cpu", "conv", {}, [](const std::string&) { return true; }, {}, {}};
  without.rule = [] { return std::string("first"); };
  ChoiceRequest with = without;
  int timed = 0;
  with.measure = [&] { return ++timed, Measurement{"fast", {{"fast", 1.0}}}; };
  CHECK(tuner.choose(without).chosen == "first");
  CHECK(tuner.choose(without).origin == ChoiceOrigin::kRule);
  for (const ChoiceRequest* request : {&with, &without, &with}) {
    CHECK(tuner.choose(*request).chosen == "fast");
  }
  CHECK(timed == 1);
}

TEST_CASE("the file's place") {
  const char* home = std::getenv("HOME");
  const char* tune = std::getenv("LOCKSTEP_AUTOTUNE");
  const std::string old_home = home == nullptr ? "" : home, old_tune = tune == nullptr ? "" : tune;
  setenv("HOME", "/home/somebody", 1);
  unsetenv("LOCKSTEP_AUTOTUNE");
  unsetenv("XDG_CACHE_HOME");
  CHECK(Autotuner::default_file() == "/home/somebody/.cache/lockstep/autotune.json");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  CHECK(Autotuner::default_file() == "/cache/lockstep/autotune.json");
  setenv("LOCKSTEP_AUTOTUNE", "/elsewhere.json", 1);
  CHECK(Autotuner::default_file() == "/elsewhere.json");
  setenv("LOCKSTEP_AUTOTUNE", "", 1);
  CHECK(Autotuner::default_file().empty());
  CHECK(Autotuner::why_no_file() == "LOCKSTEP_AUTOTUNE is empty");
  for (const char* name : {"LOCKSTEP_AUTOTUNE", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
  CHECK(Autotuner::default_file().empty());
  CHECK(Autotuner::why_no_file().find("HOME are not set") != std::string::npos);
  setenv("HOME", old_home.c_str(), 1);
  setenv("LOCKSTEP_AUTOTUNE", old_tune.c_str(), 1);
}

}  // namespace
}  // namespace lockstep::test
