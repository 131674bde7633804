// lockstep export: a trained network for other programs.

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "app/command.h"
#include "app/files.h"
#include "core/json.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/onnx.h"
#include "run/trained_model.h"

namespace lockstep {
namespace {

struct ExportArguments {
  CommonArguments common;
  std::string format;                       // onnx, safetensors
  std::filesystem::path target;             // run folder, checkpoint or other weights
  std::filesystem::path config;             // --config; empty: the run's
  bool plain = false;                       // --plain: BatchNorm as layers of their own
  std::string size;                         // --size HxW; empty: any
  std::vector<std::string> outputs{"out"};  // --outputs
  int average = 1;                          // --average N: of the newest checkpoints
};

void report(const TrainedModel& model, const ExportArguments& arguments) {
  const std::filesystem::path& output = arguments.common.output;
  for (const std::string& warning : model.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (arguments.common.json) {
    const Json json{{"file", output.string()},
                    {"format", arguments.format},
                    {"architecture", model.architecture.description},
                    {"checkpoint", model.checkpoint.string()},
                    {"eval_stats", to_string(model.config.bn.eval_stats)},
                    {"about", model.about}};
    fmt::print("{}\n", json_text(json, 2));
    return;
  }
  const auto averaged = model.about.find("lockstep.averaged");
  if (averaged != model.about.end()) fmt::print("the mean of {}\n", averaged->second);
  const auto step = model.about.find("lockstep.iteration");
  fmt::print("{}: {}, of {}{}, statistics: {}\n", output.string(), model.architecture.description,
             model.checkpoint.string(),
             step == model.about.end() ? "" : fmt::format(", step {}", step->second),
             to_string(model.config.bn.eval_stats));
}

void check_output(const ExportArguments& arguments) {
  const std::filesystem::path& output = arguments.common.output;
  if (output.empty()) throw ConfigError("export: expected -o FILE, the file to write");
  check_output_file("-o", output, std::array{arguments.target, arguments.config});
}

/// "480x640", height first.
Size parse_size(const std::string& text) {
  Size size;
  const char* const end = text.data() + text.size();
  const auto height = std::from_chars(text.data(), end, size.height);
  const bool by = height.ec == std::errc() && height.ptr != end && *height.ptr == 'x';
  const auto width = std::from_chars(by ? height.ptr + 1 : end, end, size.width);
  if (width.ec != std::errc() || width.ptr != end || size.height < 1 || size.width < 1) {
    throw ConfigError(
        fmt::format("--size: expected height and width as 480x640, got \"{}\"", text));
  }
  return size;
}

void export_onnx(const TrainedModel& model, const Size& size, const ExportArguments& arguments) {
  const OnnxOptions options{.fold_batch_norm = !arguments.plain,
                            .channels = model.config.data.channels,
                            .size_divisor = model.architecture.size_divisor,
                            .height = size.height,
                            .width = size.width,
                            .outputs = arguments.outputs,
                            .metadata = model.about};
  save_onnx(arguments.common.output, model.architecture.model, NormLayer(model.config.bn),
            model.weights, options);
}

// Without running statistics that are not looked at, a network that would look at them does not
// load the file unawares.
void export_safetensors(const TrainedModel& model, const std::filesystem::path& output) {
  SafetensorsFile file{model.weights, model.about};
  for (const std::string& layer : model.layers_by_image) {
    for (const char* statistic : {".running_mean", ".running_var", ".num_batches_tracked"}) {
      file.tensors.erase(layer + statistic);
    }
  }
  file.metadata["format"] = "pt";
  write_safetensors(output, file);
}

void declare_export(Options& options, ExportArguments& arguments) {
  options.add("FORMAT", arguments.format, "onnx or safetensors")
      .takes("onnx|safetensors")
      .required();
  options.add_weights(arguments.target, arguments.config);
  options
      .add_flag("--plain", arguments.plain,
                "onnx: BatchNorm as nodes of their own, not folded into convolutions")
      .goes_with({"onnx"});
  options.add("--size", arguments.size, "onnx: for images of HxW only; default: of any size")
      .takes("HxW");
  options
      .add("--average", arguments.average,
           "of a run: the mean of its newest N numbered checkpoints, not the last one")
      .takes_count(1, 1000);
  options
      .add("--outputs", arguments.outputs,
           "onnx: names of the network's outputs; default: out. An auxiliary head is aux")
      .takes("NAME,...")
      .separated_by_commas()
      .goes_with({"onnx"});
  options.add_overrides();
  options.add_output("FILE", "the file to write");
  options.add_json();
}

int run_export(const ExportArguments& arguments) {
  const std::filesystem::path& output = arguments.common.output;
  check_output(arguments);
  const Size size = arguments.size.empty() ? Size{} : parse_size(arguments.size);
  const TrainedModelRequest request{arguments.target, arguments.config, arguments.common.overrides,
                                    size, arguments.common.tables};
  const TrainedModel model = arguments.average == 1
                                 ? read_trained_model(request)
                                 : read_averaged_model(request, arguments.average);
  if (arguments.format == "onnx") {
    export_onnx(model, size, arguments);
  } else {
    export_safetensors(model, output);
  }
  report(model, arguments);
  return kExitDone;
}

}  // namespace

Command export_command() {
  return {
      .name = "export",
      .says = "Write a trained network for other programs",
      .page = "export",
      .examples = {{"lockstep export onnx runs/first -o model.onnx", "for ONNX Runtime and others"},
                   {"lockstep export safetensors runs/first -o model.safetensors", "for PyTorch"}},
      .declare = declares(declare_export, run_export)};
}

}  // namespace lockstep
