#include "run/tensorboard.h"

#include <charconv>
#include <chrono>
#include <fstream>

#include "config/config.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"
#include "run/json_lines.h"
#include "run/run_sink.h"

namespace lockstep {
namespace {

/// A value in TOML as the plugin's type: strings without their quotes.
HyperParameter to_hyper_parameter(const std::string& key, const std::string& toml) {
  if (toml == "true" || toml == "false") return {key, toml == "true"};
  double number = 0;
  const char* const end = toml.data() + toml.size();
  const auto [read, error] = std::from_chars(toml.data(), end, number);
  if (error == std::errc() && read == end) return {key, number};
  const bool quoted = toml.size() >= 2 && toml.front() == '"' && toml.back() == '"';
  return {key, quoted ? toml.substr(1, toml.size() - 2) : toml};
}

}  // namespace

HyperParameters hyper_parameters(const Config& config, const std::string& devices) {
  HyperParameters parameters;
  for (const ConfigValue& value : config_values(config)) {
    if (value.counts) parameters.values.push_back(to_hyper_parameter(value.key, value.value));
  }
  parameters.values.emplace_back("devices", devices);
  const bool segments = config.architecture().task == Task::kSegmentation;
  parameters.metrics = {segments ? "val/mIoU" : "val/top1", "val/loss", "train/loss"};
  return parameters;
}

namespace {

/// Seconds since 1970.
double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

class TensorBoardSink : public RunSink {
 public:
  explicit TensorBoardSink(const RunDescription& run)
      : file_(run.folder.tensorboard(), wall_time(), run.step + 1) {}

  void begin(const RunDescription& run) override {
    file_.begin_session(hyper_parameters(run.config, run.devices), wall_time());
  }
  void scalars(const Json& line) override {
    for (const Scalar& scalar : scalars_of(line))
      file_.add_scalar(scalar.tag, scalar.step, wall_time(), scalar.value);
  }
  void evaluation(const EvaluationRecord& record) override {
    for (const NamedImage& image : record.images) {
      file_.add_image("val/" + image.name, record.step, wall_time(), image.image);
    }
  }
  void end(const RunEnd& end) override {
    file_.end_session(end.status == "done"     ? SessionStatus::kSuccess
                      : end.status == "failed" ? SessionStatus::kFailure
                                               : SessionStatus::kUnknown,
                      wall_time());
  }

 private:
  TensorBoardFile file_;
};

}  // namespace

std::unique_ptr<RunSink> tensorboard_sink(const RunDescription& run) {
  if (!run.config.run.tensorboard || !run.first_process) return nullptr;
  return std::make_unique<TensorBoardSink>(run);
}

std::vector<Scalar> scalars_of(const Json& line) {
  std::vector<Scalar> scalars;
  const std::string mode = line.value("mode", "train");
  const std::int64_t step = line.value("step", std::int64_t{0});
  for (const auto& [name, value] : line.items()) {
    if (name == "step" || name == "iter" || !value.is_number()) continue;
    scalars.push_back({mode + "/" + name, step, value.get<double>()});
  }
  return scalars;
}

std::vector<Scalar> read_scalars(const std::filesystem::path& scalars) {
  if (const std::string why_not = why_unreadable(scalars); !why_not.empty()) {
    throw DataError(concat(scalars.string(), ": cannot be read: ", why_not));
  }
  std::vector<Scalar> all;
  for_each_json_line(scalars, [&](const Json& line) {
    const std::vector<Scalar> of_line = scalars_of(line);
    all.insert(all.end(), of_line.begin(), of_line.end());
  });
  return all;
}

}  // namespace lockstep
