#include "report/data/report_data.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "compare/present_runs.h"
#include "core/json.h"
#include "lockstep/core/check.h"
#include "run/json_lines.h"
#include "run/run_folder.h"
#include "run/summary_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

double value_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  const bool number = found != json.end() && found->is_number();
  return number ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

void add_point(std::vector<Point>& curve, const Json& json, const char* key) {
  if (!json.contains(key)) return;
  const Point point{value_of(json, "step"), value_of(json, key)};
  // The evaluation at the end stands twice where the last step was one of val_every.
  if (!curve.empty() && curve.back().at == point.at) {
    curve.back() = point;
  } else if (std::isfinite(point.at)) {
    curve.push_back(point);
  }
}

void read_scalars(const fs::path& path, RunRecord& run) {
  for_each_json_line(path, [&](const Json& json) {
    if (json.value("mode", "") == "train") {
      add_point(run.train_loss, json, "loss");
      add_point(run.learning_rate, json, "lr");
      add_point(run.gradient_norm, json, "grad_norm");
    } else {
      if (json.contains("top1")) run.task = Task::kClassification;
      add_point(run.val_score, json, score_name(run.task));
      add_point(run.val_loss, json, "loss");
    }
  });
}

void read_timing(const fs::path& path, RunRecord& run) {
  for_each_json_line(path, [&](const Json& json) {
    if (json.value("mode", "") == "train") add_point(run.step_seconds, json, "time");
  });
}

void read_events(const fs::path& path, RunRecord& run) {
  for_each_json_line(path, [&](const Json& json) {
    const std::string type = json.value("type", "");
    if (type == "header" || type == "resume") {
      run.mode = current_mode_name(json.value("bn_mode", run.mode));
      run.seed = json.value("seed", run.seed);
      run.devices = json.value("devices", run.devices);
      // What a resumed run does again supersedes what it did before.
      const std::int64_t step = json.value("step", std::int64_t{0});
      std::erase_if(run.lens, [&](const BatchNormDiagnostics& lens) { return lens.step > step; });
    } else if (type == "bn") {
      run.lens.push_back(diagnostics_from(json));
    }
  });
}

std::string plain_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void read_environment(const fs::path& path, RunRecord& run) {
  std::ifstream stream(path, std::ios::binary);
  const Json json = Json::parse(stream, nullptr, false);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    if (value.is_primitive()) run.environment[key] = plain_text(value);
    if (key == "libraries" && value.is_object()) {
      for (const auto& [name, version] : value.items()) {
        if (version.is_primitive()) run.environment["library " + name] = plain_text(version);
      }
    }
  }
  run.cores = json.value("cores", 0);
}

void read_config(const fs::path& path, const Tables& tables, RunRecord& run) {
  try {
    for (const ConfigValue& value : config_values(load_config(path, {}, nullptr, tables)))
      run.config.emplace_back(value.key, value.value);
  } catch (const Error& error) {
    run.config_error = error.what();
  }
}

}  // namespace

RunRecord read_run(const fs::path& folder, const Tables& tables) {
  const RunFolder files{folder};
  RunRecord run;
  run.folder = folder;
  run.summary = read_summary(folder);
  try {
    read_scalars(files.scalars(), run);
    read_timing(files.timing(), run);
    read_events(files.events(), run);
    read_environment(files.environment(), run);
  } catch (const Json::exception& error) {
    throw DataError(concat(folder.string(), ": damaged: ", error.what()));
  }
  read_config(files.config(), tables, run);
  return run;
}

std::vector<fs::path> run_folders(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw DataError(concat(folder.string(), ": expected the folder of a run or of a comparison, ",
                           fs::exists(folder) ? "got a file" : "but there is none"));
  }
  if (fs::exists(RunFolder{folder}.events())) return {folder};
  return finished_run_folders(folder);
}

std::vector<std::string> ReportData::modes() const {
  std::vector<std::string> modes;
  const auto add = [&](const std::string& mode) {
    if (std::ranges::find(modes, mode) == modes.end()) modes.push_back(mode);
  };
  if (comparison) {
    for (const ModeResult& mode : comparison->modes) add(mode.mode);
  }
  for (const RunRecord& run : runs) add(run.mode);
  return modes;
}

std::vector<const RunRecord*> ReportData::of_mode(const std::string& mode) const {
  std::vector<const RunRecord*> found;
  for (const RunRecord& run : runs) {
    if (run.mode == mode) found.push_back(&run);
  }
  return found;
}

std::string ReportData::score() const {
  return comparison ? comparison->score : score_name(runs.front().task);
}

ReportData read_report(const std::vector<fs::path>& folders, const Tables& tables,
                       std::optional<Comparison> comparison) {
  ReportData data;
  std::vector<TrainSummary> finished;
  for (const fs::path& folder : folders) {
    data.runs.push_back(read_run(folder, tables));
    if (data.runs.back().summary) finished.push_back(*data.runs.back().summary);
  }
  const bool curve = are_of_curve(finished);
  for (RunRecord& run : data.runs) {
    if (run.summary) run.mode = cell_of(*run.summary, curve).label();
  }
  data.comparison = std::move(comparison);
  if (!data.comparison && !finished.empty()) data.comparison = compare_runs(finished);
  const std::vector<std::string> modes = data.modes();
  const auto place = [&](const RunRecord& run) {
    return std::pair(std::ranges::find(modes, run.mode) - modes.begin(), run.seed);
  };
  std::ranges::stable_sort(data.runs,
                           [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return data;
}

}  // namespace lockstep
