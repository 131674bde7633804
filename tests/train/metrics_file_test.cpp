#include "run/metrics_file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "lockstep/core/check.h"
#include "support/errors.h"
#include "train/runs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::Runs;

using Labels = std::map<std::string, std::string>;

/// The text of OpenMetrics as strictly as its grammar has it: families in one piece, each with its
/// type, unit and help before its samples; counters in _total; names in their unit; no sample
/// twice; the end said. Complaints are exceptions.
class OpenMetrics {
 public:
  explicit OpenMetrics(const std::string& text) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      require(!ended_, "a line after # EOF: " + line);
      if (line == "# EOF") {
        ended_ = true;
      } else if (line.starts_with("# ")) {
        take_metadata(line);
      } else {
        take_sample(line);
      }
    }
    require(ended_ && text.ends_with("# EOF\n"), "no # EOF");
    for (const auto& [name, type] : types_) require(sampled_.contains(name), name + " is empty");
  }

  double value(const std::string& name, const Labels& some = {}) const {
    for (const auto& [key, value] : samples_) {
      const Labels& labels = key.second;
      if (key.first == name &&
          std::includes(labels.begin(), labels.end(), some.begin(), some.end()))
        return value;
    }
    throw Error("there is no " + name);
  }
  bool has(const std::string& name) const { return sampled_.contains(name); }
  /// Those of the only sample of that name.
  Labels labels(const std::string& name) const {
    for (const auto& [key, value] : samples_) {
      if (key.first == name) return key.second;
    }
    throw Error("there is no " + name);
  }

 private:
  static void require(bool holds, const std::string& what) {
    if (!holds) throw Error(what);
  }

  void take_metadata(const std::string& line) {
    static const std::regex kLine("# (TYPE|UNIT|HELP) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
    std::smatch match;
    require(std::regex_match(line, match, kLine), "no metadata: " + line);
    const std::string kind = match[1], name = match[2], rest = match[3];
    if (kind == "TYPE") {
      require(rest == "gauge" || rest == "counter", "type " + rest);
      require(types_.emplace(name, rest).second, name + " is there twice");
      family_ = name;
      return;
    }
    require(name == family_ && !sampled_.contains(name), kind + " of another family: " + line);
    if (kind == "UNIT") require(name.ends_with("_" + rest), name + " is not in its unit " + rest);
  }

  void take_sample(const std::string& line) {
    static const std::regex kLine(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\[\\n"])*",?)*)\} (\S+))re");
    std::smatch match;
    require(std::regex_match(line, match, kLine), "no sample: " + line);
    const std::string name = match[1], value = match[3];
    const bool counter = types_.at(family_) == "counter";
    require(name == family_ + (counter ? "_total" : ""), "a sample of no family: " + line);
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    require(*end == '\0' && !std::isspace(static_cast<unsigned char>(value.front())),
            "no number: " + line);
    require(samples_.emplace(std::pair(name, parse(match[2])), number).second, "twice: " + line);
    sampled_.insert(family_);
  }

  static Labels parse(const std::string& text) {
    static const std::regex kLabel(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\n"])*)"(,|$))re");
    Labels labels;
    for (auto at = std::sregex_iterator(text.begin(), text.end(), kLabel);
         at != std::sregex_iterator(); ++at) {
      std::string value;
      const std::string escaped = (*at)[2];
      for (std::size_t i = 0; i < escaped.size(); ++i) {
        const bool escape = escaped[i] == '\\';
        i += escape ? 1 : 0;
        value += escape && escaped[i] == 'n' ? '\n' : escaped[i];
      }
      require(labels.emplace((*at)[1], value).second, "a label twice: " + text);
    }
    return labels;
  }

  bool ended_ = false;
  std::string family_;
  std::map<std::string, std::string> types_;
  std::set<std::string> sampled_;
  std::map<std::pair<std::string, Labels>, double> samples_;
};

RunMetrics some_metrics() {
  RunMetrics metrics;
  metrics.run = "camvid";
  metrics.bn_mode = "sync";
  metrics.devices = "cpu:4";
  metrics.steps = 12;
  metrics.planned_steps = 40;
  metrics.epochs = 1.5;
  metrics.loss = 0.25;
  metrics.batch_norm_wait_seconds = 0.001;
  metrics.last_score = 50;
  metrics.best_score = 75;
  return metrics;
}

TEST_CASE("metrics are OpenMetrics text") {
  const OpenMetrics read(to_open_metrics(some_metrics()));
  CHECK(read.value("lockstep_steps_total", {{"run", "camvid"}}) == 12);
  CHECK(read.value("lockstep_planned_steps") == 40);
  CHECK(read.value("lockstep_epochs") == 1.5);
  CHECK(read.value("lockstep_loss") == 0.25);
  CHECK(read.value("lockstep_batch_norm_wait_seconds") == 0.001);
  CHECK(read.value("lockstep_validation_miou_ratio") == 0.5);
  CHECK(read.value("lockstep_best_validation_miou_ratio") == 0.75);
  CHECK(read.value("lockstep_run_info", {{"bn_mode", "sync"}, {"devices", "cpu:4"}}) == 1);
}

TEST_CASE("exactly one state holds") {
  for (const std::string state : {"running", "done", "failed", "interrupted"}) {
    RunMetrics metrics = some_metrics();
    metrics.state = state;
    const OpenMetrics read(to_open_metrics(metrics));
    double sum = 0;
    for (const std::string other : {"running", "done", "failed", "interrupted"}) {
      const double value = read.value("lockstep_run_state", {{"state", other}});
      CHECK((value == 1) == (other == state));
      sum += value;
    }
    CHECK(sum == 1);
  }
}

TEST_CASE("what is not known has no line, what is no number its name") {
  RunMetrics metrics = some_metrics();
  metrics.loss.reset();
  metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
  metrics.step_seconds = std::numeric_limits<double>::infinity();
  const std::string text = to_open_metrics(metrics);
  const OpenMetrics read(text);
  CHECK_FALSE(read.has("lockstep_loss"));
  CHECK_FALSE(contains(text, "lockstep_loss"));
  CHECK(contains(text, "lockstep_gradient_norm{run=\"camvid\"} NaN\n"));
  CHECK(contains(text, "lockstep_step_seconds{run=\"camvid\"} +Inf\n"));
}

TEST_CASE("labels are escaped") {
  RunMetrics metrics = some_metrics();
  metrics.run = "a\\b \"c\"\nd,e=\"";
  metrics.devices = "\\n";
  const std::string text = to_open_metrics(metrics);
  CHECK(contains(text, R"(run="a\\b \"c\"\nd,e=\"",)"));
  const Labels labels = OpenMetrics(text).labels("lockstep_run_info");
  CHECK(labels.at("run") == metrics.run);
  CHECK(labels.at("devices") == "\\n");
}

TEST_CASE("a run writes its metrics, and is the same run with them") {
  const Runs runs;
  const fs::path file = runs.path() / "a.prom";
  train(runs.request("a", {"run.metrics_file=" + file.string()}));
  train(runs.request("b"));
  test::check_same_run(runs.folder("a"), runs.folder("b"));
  const OpenMetrics read(test::read_text(file));
  CHECK(read.value("lockstep_run_state", {{"state", "done"}}) == 1);
  CHECK(read.value("lockstep_steps_total") == 10);
  CHECK(read.value("lockstep_devices") == 4);
  CHECK(read.value("lockstep_epochs") == 5);
  CHECK(read.value("lockstep_images_per_second") ==
        doctest::Approx(6 / read.value("lockstep_step_seconds")));
  CHECK(read.value("lockstep_peak_memory_bytes") > 1e6);
  const std::vector<nlohmann::json> lines = test::lines_of(runs.folder("a").scalars());
  const auto last = [&](const char* mode, const char* name) {
    double value = -1;
    for (const auto& line : lines) {
      if (line.at("mode") == mode) value = line.at(name).get<double>();
    }
    return value;
  };
  CHECK(read.value("lockstep_loss") == last("train", "loss"));
  CHECK(read.value("lockstep_learning_rate") == last("train", "lr"));
  CHECK(read.value("lockstep_validation_miou_ratio") == doctest::Approx(last("val", "mIoU") / 100));
  CHECK(read.value("lockstep_best_validation_miou_ratio") >=
        read.value("lockstep_validation_miou_ratio"));
}

TEST_CASE("the metrics of a run that fails say so") {
  const Runs runs;
  const fs::path file = runs.path() / "a.prom";
  CHECK_THROWS_AS(train(runs.request("a", {"run.metrics_file=" + file.string(), "optim.lr=1e38"})),
                  NonFiniteError);
  CHECK(OpenMetrics(test::read_text(file)).value("lockstep_run_state", {{"state", "failed"}}) == 1);
}

TEST_CASE("a file that cannot be written ends a run before it begins") {
  const Runs runs;
  const std::vector<std::string> files{(runs.path() / "nowhere/a.prom").string(),
                                       runs.path().string()};
  for (const std::string& name : files) {
    const auto begin = [&] { train(runs.request("a", {"run.metrics_file=" + name})); };
    CHECK_THROWS_AS(begin(), ConfigError);
    CHECK_FALSE(fs::exists(runs.folder("a").root));
  }
}

TEST_CASE("a file that can no longer be written is told of once") {
  const test::TemporaryFolder folder;
  const fs::path own = folder.path() / "own";
  fs::create_directory(own);
  MetricsFile file(own / "a.prom", some_metrics());
  CHECK(fs::exists(own / "a.prom"));
  fs::remove_all(own);
  CHECK(contains(file.write(some_metrics()), "own/a.prom"));
  CHECK(file.write(some_metrics()).empty());
  fs::create_directory(own);
  CHECK(file.write(some_metrics()).empty());
  CHECK(fs::exists(own / "a.prom"));
}

}  // namespace
}  // namespace lockstep
