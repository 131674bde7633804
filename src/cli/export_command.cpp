// lockstep export: a trained network for other programs.

#include <fmt/format.h>

#include "cli/cli.h"
#include "lockstep/core/check.h"
#include "train/trained_model.h"

namespace lockstep {
namespace {

void report(const TrainedModel& model, const std::filesystem::path& output) {
  for (const std::string& warning : model.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const auto step = model.about.find("lockstep.iteration");
  fmt::print("{}: {}, of {}{}, running statistics: {}\n", output.string(),
             model.architecture.description, model.checkpoint.string(),
             step == model.about.end() ? "" : fmt::format(", step {}", step->second),
             to_string(model.config.bn.eval_stats));
}

void check_output(const std::filesystem::path& output) {
  if (output.empty()) throw ConfigError("export: expected -o FILE, the file to write");
  const std::filesystem::path folder = std::filesystem::absolute(output).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(fmt::format("-o {}: there is no folder {}; make it first", output.string(),
                                  folder.string()));
  }
}

void export_safetensors(const TrainedModel& model, const std::filesystem::path& output) {
  SafetensorsFile file{model.weights, model.about};
  file.metadata["format"] = "pt";
  write_safetensors(output, file);
}

}  // namespace

int run_export(const ExportArguments& arguments) {
  if (arguments.format != "safetensors") {
    throw ConfigError(fmt::format("export: expected safetensors, got {}", arguments.format));
  }
  const std::filesystem::path& output = arguments.common.output;
  check_output(output);
  const TrainedModel model = read_trained_model(
      {arguments.target, arguments.config, arguments.common.overrides, arguments.common.tables});
  export_safetensors(model, output);
  report(model, output);
  return kExitDone;
}

}  // namespace lockstep
