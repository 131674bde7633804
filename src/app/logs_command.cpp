// lockstep logs: the logs of runs, listed, read, drawn and converted.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "app/command.h"
#include "app/files.h"
#include "app/logs_plot.h"
#include "compare/table.h"
#include "core/json.h"
#include "core/utf8.h"
#include "core/words.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "report/sections/curve_figure.h"
#include "run/json_lines.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "run/summary.h"
#include "run/tensorboard.h"
#include "train/evaluator.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct LogsArguments {
  CommonArguments common;
  std::string action;                         // ls, show, tail, plot, export
  std::vector<std::filesystem::path> inputs;  // run folders, or folders of them
  std::string key;                            // plot: --key loss
  bool follow = false;                        // tail: -f
  std::filesystem::path svg;                  // plot: --svg FILE; empty: in the terminal
  std::filesystem::path csv;                  // export: --csv FILE
  std::filesystem::path tensorboard;          // export: --tensorboard DIR
};

/// Whether a run has written into the folder, or nobody can tell: who reads it will say why.
bool may_hold_run(const fs::path& folder) {
  try {
    return RunFolder{folder}.holds_run();
  } catch (const fs::filesystem_error&) {
    return true;
  }
}

/// The run folders among `inputs` and everywhere below them, in order of their names.
std::vector<fs::path> runs_below(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> runs;
  for (const fs::path& input : inputs) {
    if (!fs::is_directory(input)) {
      throw ConfigError(fmt::format("logs: there is no folder {}", input.string()));
    }
    if (may_hold_run(input)) {
      runs.push_back(input);
      continue;
    }
    std::vector<fs::path> below;
    const auto options = fs::directory_options::skip_permission_denied;
    for (const auto& entry : fs::recursive_directory_iterator(input, options)) {
      std::error_code unknown;
      if (entry.is_directory(unknown) && may_hold_run(entry.path())) below.push_back(entry.path());
    }
    std::ranges::sort(below);
    runs.insert(runs.end(), below.begin(), below.end());
  }
  if (runs.empty()) {
    throw ConfigError(fmt::format("logs: no run in {}", inputs.front().string()));
  }
  return runs;
}

/// Throws DataError unless the file of the run can be read.
void check_readable(const fs::path& file) {
  if (::access(file.c_str(), R_OK) == 0) return;
  throw DataError(fmt::format("{}: {}", file.filename().string(), std::strerror(errno)));
}

/// Of a run whose events have no end.
std::string status_without_end(const fs::path& run) {
  switch (run_lock_state(run)) {
    case RunLockState::kHeld:
      return "running";
    case RunLockState::kLeft:
      return "killed";
    case RunLockState::kUnknown:
      break;
  }
  return "no end";
}

/// What events.jsonl says of the run's beginning and of its end, which a run that is at work or was
/// killed has none of.
void add_state(const fs::path& run, Json& json) {
  std::int64_t step = 0;
  bool ended = false;
  for_each_json_line(RunFolder{run}.events(), [&](const Json& line) {
    const std::string type = line.value("type", "");
    // Where a run goes on, what it had written of later steps does not count.
    step = type == "resume" ? line.value("step", step)
                            : std::max(step, line.value("step", std::int64_t{0}));
    if (type == "header" || type == "resume") {
      for (const char* key : {"bn_mode", "devices", "seed"}) {
        if (line.contains(key)) json[key] = line[key];
      }
      if (json.contains("bn_mode")) json["bn_mode"] = current_mode_name(json.value("bn_mode", ""));
      ended = false;
      json.erase("error");
    }
    if (type == "end") {
      ended = true;
      json["status"] = line.value("status", "no end");
      if (line.contains("error")) json["error"] = line["error"];
    }
  });
  if (!ended) json["status"] = status_without_end(run);
  json["step"] = step;
}

/// Fills in what there is to say of the run; throws where its files cannot be read.
void describe(const fs::path& run, Json& json) {
  json["run"] = run.string();
  json["status"] = "no end";
  const RunFolder folder{run};
  check_readable(folder.events());
  add_state(run, json);
  if (const auto summary = read_summary(run)) {
    json["step"] = summary->iterations;
    json["train_loss"] = summary->train_loss;
  }
  check_readable(folder.scalars());
  for (const Scalar& scalar : read_scalars(folder.scalars())) {
    json["step"] = std::max(json["step"].get<std::int64_t>(), scalar.step);
    if (scalar.tag == "val/mIoU" || scalar.tag == "val/top1") json["score"] = scalar.value;
  }
}

/// As describe(); a run that cannot be read is "unreadable", with the error.
Json describe_any(const fs::path& run) {
  Json json;
  try {
    describe(run, json);
  } catch (const std::exception& error) {
    json["status"] = "unreadable";
    json["error"] = error.what();
  }
  return json;
}

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return "-";
  if (found->is_number_float()) return fmt::format("{:.3f}", found->get<double>());
  return found->is_string() ? found->get<std::string>() : found->dump();
}

void list(const LogsArguments& arguments) {
  Json all = Json::array();
  const std::vector<fs::path> inputs =
      arguments.inputs.empty() ? std::vector<fs::path>{"runs"} : arguments.inputs;
  for (const fs::path& run : runs_below(inputs)) all.push_back(describe_any(run));
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(all, 2));
    return;
  }
  const std::vector<const char*> keys{"run",     "status", "step",       "bn_mode",
                                      "devices", "seed",   "train_loss", "score"};
  Table table{.header = {keys.begin(), keys.end()}, .rows = {}};
  for (const Json& run : all) {
    table.rows.emplace_back();
    for (const char* key : keys) table.rows.back().push_back(text_of(run, key));
    if (run["status"] == "unreadable") {
      table.rows.back()[1] = fmt::format("unreadable: {}", text_of(run, "error"));
    }
  }
  fmt::print("{}", to_markdown(table));
}

fs::path only_run(const LogsArguments& arguments) {
  if (arguments.inputs.size() != 1 || !RunFolder{arguments.inputs[0]}.holds_run()) {
    throw ConfigError(fmt::format("logs {}: expected one run folder", arguments.action));
  }
  return arguments.inputs[0];
}

/// Prints what the stream has more, and returns whether that was anything.
bool print_rest(std::ifstream& stream) {
  bool any = false;
  stream.clear();
  for (std::string line; std::getline(stream, line); any = true) {
    fmt::print("{}{}", line, stream.eof() ? "" : "\n");
  }
  std::fflush(stdout);
  return any;
}

bool has_ended(const fs::path& run) {
  bool ended = false;
  for_each_json_line(RunFolder{run}.events(), [&](const Json& json) {
    const std::string type = json.value("type", "");
    ended = type == "end" || (ended && type != "resume" && type != "header");
  });
  return ended;
}

/// Prints what is written until the run has ended, or was killed, which it does not say itself.
void follow_log(const fs::path& run, std::ifstream& log) {
  // A training that begins has its lock file an instant before the lock.
  constexpr int kLooks = 3;
  int left = 0;  // looks in a row that have found the lock so
  while (!has_ended(run) && left < kLooks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    print_rest(log);
    left = run_lock_state(run) == RunLockState::kLeft ? left + 1 : 0;
  }
  print_rest(log);
  if (left == kLooks) {
    fmt::print(stderr,
               "{}: the training was killed; to go on from its newest checkpoint, repeat its "
               "command with --resume\n",
               run.string());
  }
}

Json scalars_json(const std::vector<Scalar>& scalars) {
  Json json = Json::array();
  for (const Scalar& scalar : scalars)
    json.push_back({{"step", scalar.step}, {"name", scalar.tag}, {"value", scalar.value}});
  return json;
}

void show_json(const fs::path& run) {
  Json json;
  describe(run, json);
  json["scalars"] = scalars_json(read_scalars(RunFolder{run}.scalars()));
  fmt::print("{}\n", json_text(json, 2));
}

void show(const fs::path& run, bool only_end, bool follow) {
  std::ifstream log(RunFolder{run}.log());
  if (only_end) {
    constexpr std::size_t kLines = 10;
    std::vector<std::string> lines;
    for (std::string line; std::getline(log, line);) lines.push_back(line);
    const std::size_t first = lines.size() > kLines ? lines.size() - kLines : 0;
    for (std::size_t i = first; i < lines.size(); ++i) fmt::print("{}\n", lines[i]);
  }
  print_rest(log);
  if (follow) follow_log(run, log);
}

/// Of the terminal that stdout is; 0: it is none, or does not know.
int terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* said = std::getenv("COLUMNS");
  return said != nullptr && isatty(STDOUT_FILENO) != 0 ? std::atoi(said) : 0;
}

using ScalarsByRun = std::vector<std::pair<fs::path, std::vector<Scalar>>>;

bool has_tag(const ScalarsByRun& runs, const std::string& tag) {
  return std::ranges::any_of(runs, [&](const auto& run) {
    return std::ranges::any_of(run.second, [&](const Scalar& scalar) { return scalar.tag == tag; });
  });
}

/// "train/loss" for "loss", "val/mIoU" for "mIoU". Throws ConfigError naming what there is.
std::string full_tag(const ScalarsByRun& runs, const std::string& key) {
  for (const std::string& tag : {key, "train/" + key, "val/" + key}) {
    if (has_tag(runs, tag)) return tag;
  }
  std::set<std::string> tags;
  for (const auto& [run, scalars] : runs) {
    for (const Scalar& scalar : scalars) tags.insert(scalar.tag);
  }
  throw ConfigError(
      fmt::format("logs plot: no {} in these runs; they have {}", key, fmt::join(tags, ", ")));
}

/// The mode by which a run is drawn, of the last line of events.jsonl that begins it.
std::string mode_of(const fs::path& run) {
  std::string mode;
  for_each_json_line(RunFolder{run}.events(), [&](const Json& json) {
    if (json.contains("bn_mode")) mode = current_mode_name(json.value("bn_mode", ""));
  });
  return mode;
}

std::vector<Point> points_of(const std::vector<Scalar>& scalars, const std::string& tag) {
  std::vector<Point> points;
  for (const Scalar& scalar : scalars) {
    if (scalar.tag == tag) points.push_back({static_cast<double>(scalar.step), scalar.value});
  }
  return points;
}

/// Returns how many runs are in it.
int write_svg(const ScalarsByRun& runs, const std::string& tag, const fs::path& file) {
  Plot chart{tag};
  chart.x_label = "step";
  chart.may_be_logarithmic = tag == "train/loss" || tag == "train/grad_norm";
  Interval steps{std::numeric_limits<double>::infinity(), 0};
  for (const auto& [run, scalars] : runs) {
    for (const Point& point : points_of(scalars, tag)) {
      steps = {std::min(steps.low, point.at), std::max(steps.high, point.at)};
    }
  }
  int drawn = 0;
  for (const auto& [run, scalars] : runs) {
    const std::vector<Point> points = points_of(scalars, tag);
    if (points.empty()) continue;
    add_curve(chart, points, mode_of(run), run.string(), steps);
    ++drawn;
  }
  write_file_atomically(file, draw(chart).file());
  return drawn;
}

void plot(const LogsArguments& arguments) {
  ScalarsByRun runs;
  for (const fs::path& run : runs_below(arguments.inputs))
    runs.emplace_back(run, read_scalars(RunFolder{run}.scalars()));
  const std::string tag = full_tag(runs, arguments.key.empty() ? "loss" : arguments.key);
  if (!arguments.svg.empty()) {
    check_output_file("--svg", arguments.svg);
    const int drawn = write_svg(runs, tag, arguments.svg);
    if (!arguments.common.json) {
      fmt::print("{}: {} of {}\n", arguments.svg.string(), tag, count_of(drawn, "run"));
      return;
    }
  }
  std::vector<TerminalCurve> curves;
  for (const auto& [run, scalars] : runs) {
    curves.push_back({run.string() + ", " + tag, {}});
    for (const Scalar& scalar : scalars) {
      if (scalar.tag == tag)
        curves.back().points.emplace_back(static_cast<double>(scalar.step), scalar.value);
    }
  }
  if (!arguments.common.json) {
    fmt::print("{}", plot_text(curves, plot_columns(terminal_columns()), 18));
    return;
  }
  Json json{{"name", tag}, {"runs", Json::array()}};
  for (std::size_t i = 0; i < curves.size(); ++i)
    json["runs"].push_back({{"run", runs[i].first.string()}, {"points", curves[i].points}});
  fmt::print("{}\n", json_text(json, 2));
}

void export_csv(const std::vector<fs::path>& runs, const fs::path& file) {
  std::string text = "run,step,name,value\n";
  for (const fs::path& run : runs) {
    for (const Scalar& scalar : read_scalars(RunFolder{run}.scalars())) {
      text += fmt::format("{},{},{},{}\n", csv_cell(run.string()), scalar.step,
                          csv_cell(scalar.tag), scalar.value);
    }
  }
  write_file_atomically(file, text);
}

void export_tensorboard(const std::vector<fs::path>& runs, const fs::path& folder) {
  for (const fs::path& run : runs) {
    const RunFolder files{run};
    const auto written = fs::last_write_time(files.scalars());
    const auto time = std::chrono::file_clock::to_sys(written).time_since_epoch();
    const double seconds = std::chrono::duration<double>(time).count();
    const fs::path own = folder / fs::weakly_canonical(run).filename();
    // Two runs in one folder would be one curve of both.
    if (fs::exists(own)) {
      throw ConfigError(
          fmt::format("--tensorboard {}: {} is there already, and {} would be added to "
                      "it; choose another folder, or export runs of one name apart",
                      folder.string(), own.string(), run.string()));
    }
    TensorBoardFile file(own, seconds, 0);
    for (const Scalar& scalar : read_scalars(files.scalars()))
      file.add_scalar(scalar.tag, scalar.step, seconds, scalar.value);
  }
}

void export_logs(const LogsArguments& arguments) {
  if (arguments.csv.empty() && arguments.tensorboard.empty()) {
    throw ConfigError("logs export: expected --csv FILE or --tensorboard DIR");
  }
  if (!arguments.csv.empty()) check_output_file("--csv", arguments.csv);
  const std::vector<fs::path> runs = runs_below(arguments.inputs);
  if (!arguments.csv.empty()) export_csv(runs, arguments.csv);
  if (!arguments.tensorboard.empty()) export_tensorboard(runs, arguments.tensorboard);
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(Json{{"runs", runs.size()},
                                      {"csv", arguments.csv.string()},
                                      {"tensorboard", arguments.tensorboard.string()}}));
    return;
  }
  fmt::print("{} written\n", count_of(runs.size(), "run"));
}

void declare_logs(Options& options, LogsArguments& arguments) {
  options
      .add("ACTION", arguments.action,
           "ls: the runs in a folder; show: a run's log; tail: its end; plot: curves in the "
           "terminal; export: for other programs")
      .takes("ls|show|tail|plot|export")
      .required();
  options.add("RUN", arguments.inputs, "run folders, or folders of them; ls: default runs")
      .takes("");
  options.add("--key", arguments.key, "plot: loss, lr, grad_norm, mIoU, ...; default: loss")
      .takes("NAME")
      .goes_with({"plot"});
  options.add("--svg", arguments.svg, "plot: into this file, in place of the terminal")
      .takes("FILE")
      .goes_with({"plot"});
  options.add_flag("-f,--follow", arguments.follow, "tail: until the run ends").goes_with({"tail"});
  options.add("--csv", arguments.csv, "export: one line per number, for spreadsheets")
      .takes("FILE")
      .goes_with({"export"});
  options
      .add("--tensorboard", arguments.tensorboard, "export: event files in a folder, one run each")
      .takes("DIR")
      .goes_with({"export"});
  options.add_json();
}

int run_logs(const LogsArguments& arguments) {
  const std::string& action = arguments.action;
  if (action != "ls" && arguments.inputs.empty()) {
    throw ConfigError(fmt::format("logs {}: expected run folders", action));
  }
  const bool as_json = arguments.common.json;
  if (as_json && action == "tail") {
    throw ConfigError(
        "logs tail prints lines as they come; --json goes with ls, show, plot, export");
  }
  if (action == "ls") list(arguments);
  if (action == "show" && as_json) show_json(only_run(arguments));
  if (action == "show" && !as_json) show(only_run(arguments), false, false);
  if (action == "tail") show(only_run(arguments), true, arguments.follow);
  if (action == "plot") plot(arguments);
  if (action == "export") export_logs(arguments);
  return kExitDone;
}

}  // namespace

Command logs_command() {
  return {
      .name = "logs",
      .says = "List, read, draw and convert the logs of runs",
      .page = "run_folder",
      .examples = {{"lockstep logs ls runs", "all runs below a folder, with their state and score"},
                   {"lockstep logs tail -f runs/first", "what a training says, until it ends"},
                   {"lockstep logs plot runs/compare --key mIoU", "curves in the terminal"},
                   {"lockstep logs export runs/compare --csv all.csv",
                    "all numbers, for a spreadsheet"}},
      .declare = declares(declare_logs, run_logs)};
}

}  // namespace lockstep
