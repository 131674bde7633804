// lockstep diagnose: which norm a training needs and how to evaluate it, before it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "app/command.h"
#include "compare/table.h"
#include "core/json.h"
#include "core/words.h"
#include "lockstep/core/check.h"
#include "run/report_text.h"
#include "run/trained_model.h"
#include "train/diagnosis/diagnosis.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct DiagnoseArguments {
  CommonArguments common;
  fs::path target;                              // configuration, run or weights
  fs::path config;                              // --config; empty: the target's own
  std::vector<std::int64_t> images_per_device;  // --images-per-device; empty: those that fit
  std::int64_t images = 0;                      // --images; 0: as many as it takes
  bool layers = false;                          // --layers
  int top = 0;                                  // --top K; 0: none
};

DiagnosisRequest request_of(const DiagnoseArguments& arguments) {
  const CommonArguments& common = arguments.common;
  const bool is_config = arguments.target.extension() == ".toml";
  if (is_config && !arguments.config.empty()) {
    throw ConfigError(concat(arguments.target.string(), " is a configuration already: leave -c ",
                             "away, or name weights in its place"));
  }
  DiagnosisRequest request;
  fs::path config = arguments.target;
  if (!is_config) {
    request.weights = checkpoint_of(arguments.target);
    config = config_of(arguments.config, request.weights);
  }
  std::vector<std::string> warnings;
  request.config = load_config(config, common.overrides, &warnings, *common.tables);
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
  request.device = common.devices;
  request.images_per_device = arguments.images_per_device;
  request.images = arguments.images;
  return request;
}

// --- for people ---

void print_effects(const Diagnosis& diagnosis) {
  Table table{
      .header = {"images per device", "values per channel", "variance missed", "logits: noise",
                 "train - eval", "loss in training", "in evaluation", "classes changed"},
      .rows = {}};
  for (const ImagesDiagnosis& images : diagnosis.by_images) {
    if (images.impossible) continue;
    table.rows.push_back(
        {fmt::format("{}", images.together), fmt::format("{}", images.smallest().values),
         format_number(100 * images.worst().missed, 1) + " %", format_number(images.logit_noise, 3),
         format_number(images.logit_disparity, 3), format_number(images.loss, 4),
         format_number(images.running_loss, 4), format_number(100 * images.changed, 1) + " %"});
  }
  fmt::print("{}\n", to_markdown(table));
}

void print_layers(const Diagnosis& diagnosis) {
  for (const ImagesDiagnosis& images : diagnosis.by_images) {
    Table table{.header = {fmt::format("{} per device", count_of(images.together, "image")),
                           "values per channel", "between / within", "variance missed",
                           "shift of the mean", "|log variance ratio|", "bimodality"},
                .rows = {}};
    for (const LayerNoise& layer : images.layers) {
      table.rows.push_back(
          {layer.layer, fmt::format("{}", layer.values), format_number(layer.ratio, 4),
           format_number(100 * layer.missed, 1) + " %", format_number(layer.mean_shift, 3),
           format_number(layer.log_var_ratio, 3), format_number(layer.bimodality, 2)});
    }
    fmt::print("{}\n", to_markdown(table));
  }
}

// Numbers of images with the same to say stand in one line.
void print_verdicts(const Diagnosis& diagnosis) {
  const std::vector<ImagesDiagnosis>& all = diagnosis.by_images;
  for (auto first = all.begin(); first != all.end();) {
    const auto end = std::find_if(first, all.end(), [&](const ImagesDiagnosis& images) {
      return images.verdict != first->verdict || images.reason != first->reason;
    });
    std::vector<std::int64_t> numbers;
    for (auto images = first; images != end; ++images) numbers.push_back(images->together);
    fmt::print("{} {} per device: {} ({})\n", fmt::join(numbers, ", "),
               numbers == std::vector<std::int64_t>{1} ? "image" : "images",
               to_string(first->verdict), first->reason);
    first = end;
  }
}

void print_report(const DiagnoseArguments& arguments, const Diagnosis& diagnosis) {
  fmt::print("{} of {}x{}, {}\n", count_of(diagnosis.images, "training image"),
             diagnosis.size.height, diagnosis.size.width, diagnosis.weights);
  if (!diagnosis.shares_statistics()) {
    fmt::print(
        "nothing is shared: no layer of this network normalises by statistics of several images in "
        "training, so there is nothing to synchronize\n");
    return;
  }
  if (!diagnosis.left_out.empty()) {
    fmt::print("left out: {} images per device, which take two sets of as many\n",
               fmt::join(diagnosis.left_out, ", "));
  }
  fmt::print("loss by statistics of all of them: {:.4f}\n\n", diagnosis.loss);
  print_effects(diagnosis);
  if (arguments.layers) print_layers(diagnosis);
  print_verdicts(diagnosis);
  if (arguments.top > 0) {
    fmt::print("the layers that differ most between devices: -s 'bn.sync_layers={}'\n",
               Json(layers_apart(diagnosis, static_cast<std::size_t>(arguments.top))).dump());
  }
  fmt::print("lockstep docs diagnose says how often such verdicts were right; {:.1f} s\n",
             diagnosis.seconds);
}

// --- for programs ---

Json to_json(const LayerNoise& layer) {
  return {{"layer", layer.layer},
          {"values", layer.values},
          {"ratio", layer.ratio},
          {"missed", layer.missed},
          {"log_var_ratio", layer.log_var_ratio},
          {"mean_shift", layer.mean_shift},
          {"bimodality", layer.bimodality}};
}

Json to_json(const ImagesDiagnosis& images) {
  Json layers = Json::array();
  for (const LayerNoise& layer : images.layers) layers.push_back(to_json(layer));
  const auto measured = [&](double value) {
    return images.impossible ? Json(nullptr) : Json(value);
  };
  return {{"images_per_device", images.together},
          {"verdict", to_string(images.verdict)},
          {"reason", images.reason},
          {"values", images.smallest().values},
          {"missed", images.worst().missed},
          {"logit_noise", measured(images.logit_noise)},
          {"logit_disparity", measured(images.logit_disparity)},
          {"changed", measured(images.changed)},
          {"loss", measured(images.loss)},
          {"running_loss", measured(images.running_loss)},
          {"stored_loss", json_or_null(images.stored_loss)},
          {"disparity", measured(images.disparity())},
          {"layers", layers}};
}

Json to_json(const Diagnosis& diagnosis, int top) {
  Json by_images = Json::array();
  for (const ImagesDiagnosis& images : diagnosis.by_images) by_images.push_back(to_json(images));
  return {{"images", diagnosis.images},
          {"size", {diagnosis.size.height, diagnosis.size.width}},
          {"weights", diagnosis.weights},
          {"shares_statistics", diagnosis.shares_statistics()},
          {"loss", diagnosis.loss},
          {"by_images_per_device", by_images},
          {"left_out", diagnosis.left_out},
          {"sync_layers", layers_apart(diagnosis, static_cast<std::size_t>(top))},
          {"seconds", diagnosis.seconds}};
}

void declare_diagnose(Options& options, DiagnoseArguments& arguments) {
  options
      .add_config("TARGET", arguments.target,
                  "configuration, run folder (its last checkpoint), or with -c any weights")
      .takes("CONFIG|RUN|FILE")
      .required();
  options.add_config("-c,--config", arguments.config,
                     "configuration of weights; default: the run's");
  options
      .add("--images-per-device", arguments.images_per_device,
           "numbers of images that share statistics; default: those of 1,2,4,8 that fit the data")
      .takes_count(1, 65536)
      .takes("N,...")
      .separated_by_commas();
  options
      .add("--images", arguments.images,
           "training images to look at; default: 64, or twice the most per device")
      .takes_count(2, 65536);
  options.add_flag("--layers", arguments.layers, "also a table of every layer");
  options
      .add("--top", arguments.top,
           "also the K layers that differ most between devices, for bn.sync_layers")
      .takes_count(1, 65536);
  options.add_devices();
  options.add_overrides();
  options.add_json();
}

int run_diagnose(const DiagnoseArguments& arguments) {
  const Diagnosis diagnosis = diagnose(request_of(arguments));
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(to_json(diagnosis, arguments.top), 2));
  } else {
    print_report(arguments, diagnosis);
  }
  return kExitDone;
}

}  // namespace

Command diagnose_command() {
  return {.name = "diagnose",
          .says = "Which norm a training needs and how to evaluate it, from forward passes alone",
          .page = "diagnose",
          .examples = {{"lockstep diagnose data/configs/quickstart.toml --images-per-device 1,2,4",
                        "before any training, from its initial weights"},
                       {"lockstep diagnose runs/first --layers --images-per-device 1,2,4",
                        "of a trained network, with every layer's figures"},
                       {"lockstep diagnose runs/first/ckpt/last.safetensors -c "
                        "data/configs/quickstart.toml --json",
                        "weights from anywhere, with a configuration for the data"}},
          .declare = declares(declare_diagnose, run_diagnose)};
}

}  // namespace lockstep
