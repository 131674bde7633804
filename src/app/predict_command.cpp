// lockstep predict: what a trained network says of images.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "app/command.h"
#include "app/terminal.h"
#include "core/json.h"
#include "core/words.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "run/report_text.h"
#include "train/evaluator.h"
#include "train/inference/predict_images.h"

namespace lockstep {
namespace {

struct PredictArguments {
  CommonArguments common;
  std::filesystem::path target;               // run folder or checkpoint
  std::vector<std::filesystem::path> images;  // files and folders
  std::filesystem::path config;               // --config; empty: the run's
  bool flip = false;                          // --flip
  std::string scales;                         // --scales 0.5,1,1.5; empty: not given
  WindowArguments windows;
  bool no_overlay = false;     // --no-overlay
  bool probabilities = false;  // --probabilities
  bool submission = false;     // --submission
  bool force = false;          // --force: write over what is there
};

PredictRequest request_of(const PredictArguments& arguments) {
  if (arguments.common.output.empty()) {
    throw ConfigError("predict: expected -o DIR, the folder to write to");
  }
  PredictRequest request;
  request.target = arguments.target;
  request.config = arguments.config;
  request.overrides = arguments.common.overrides;
  for (const std::string& key : arguments.windows.overrides()) request.overrides.push_back(key);
  request.devices = arguments.common.devices;
  request.tables = arguments.common.tables;
  request.images = arguments.images;
  request.output = arguments.common.output;
  request.augmentation = augmentation_of(arguments.flip, arguments.scales);
  request.overlay = !arguments.no_overlay;
  request.probabilities = arguments.probabilities;
  request.submission = arguments.submission;
  request.force = arguments.force;
  return request;
}

double images_per_second(const PredictReport& report) {
  return static_cast<double>(report.done) / std::max(report.seconds, 1e-9);
}

Json top_json(const PredictedImage& image, const PredictReport& report) {
  Json top = Json::array();
  for (const ClassScore& score : image.top) {
    top.push_back({{"class", score.label},
                   {"name", report.classes[score.label]},
                   {"probability", score.probability}});
  }
  return top;
}

Json image_json(const PredictedImage& image, const PredictReport& report) {
  Json json{
      {"image", image.image.string()}, {"height", image.size.height}, {"width", image.size.width}};
  const auto add = [&](const char* key, const std::filesystem::path& file) {
    if (!file.empty()) json[key] = file.string();
  };
  add("map", image.files.map);
  add("overlay", image.files.overlay);
  add("probabilities", image.files.probabilities);
  if (report.task == Task::kClassification) json["top5"] = top_json(image, report);
  return json;
}

Json to_json(const PredictReport& report, const TestTimeAugmentation& augmentation) {
  Json images = Json::array(), failed = Json::array();
  for (const PredictedImage& image : report.images) {
    if (image.done) images.push_back(image_json(image, report));
    if (!image.error.empty()) {
      failed.push_back({{"image", image.image.string()}, {"error", image.error}});
    }
  }
  const bool segments = report.task == Task::kSegmentation;
  Json json{{"checkpoint", report.checkpoint.string()},
            {"iteration", report.iteration},
            {"devices", report.devices},
            {"task", to_string(report.task)},
            {"classes", report.classes},
            {"tta", nullptr},
            {"images", images},
            {"failed", failed},
            {segments ? "pixels" : "predicted", report.counts},
            {"seconds", report.seconds},
            {"images_per_second", images_per_second(report)}};
  if (augmentation.active()) json["tta"] = to_json(augmentation);
  if (!report.table.empty()) json["table"] = report.table.string();
  return json;
}

void print_counts(const PredictReport& report) {
  std::size_t width = 5;
  std::int64_t total = 0;
  for (const std::string& name : report.classes) width = std::max(width, name.size());
  for (const std::int64_t count : report.counts) total += count;
  const char* of = report.task == Task::kSegmentation ? "pixels" : "images";
  fmt::print("{:<{}}  {:>14}\n", "class", width, of);
  for (std::size_t c = 0; c < report.counts.size(); ++c) {
    fmt::print("{:<{}}  {:>14}  {:6.2f} %\n", report.classes[c], width, report.counts[c],
               100.0 * static_cast<double>(report.counts[c]) /
                   static_cast<double>(std::max<std::int64_t>(total, 1)));
  }
}

// As many as a terminal shows; all are in the file.
void print_top(const PredictReport& report) {
  constexpr std::int64_t kMostRows = 40;
  std::int64_t rows = 0;
  for (const PredictedImage& image : report.images) {
    if (!image.done) continue;
    if (++rows > kMostRows) break;
    std::string text = image.image.string();
    for (const ClassScore& score : image.top) {
      text += fmt::format("  {} {:.3f}", report.classes[score.label], score.probability);
    }
    fmt::print("{}\n", text);
  }
  if (report.done > kMostRows) {
    fmt::print("... all {} in {}\n", report.done, report.table.string());
  }
}

void print(const PredictReport& report, const PredictRequest& request) {
  fmt::print("{}\n", format_checkpoint(report.checkpoint, report.iteration, report.devices,
                                       request.devices.empty()));
  if (request.augmentation.active()) {
    fmt::print("test-time augmentation: {}\n", to_string(request.augmentation));
  }
  if (report.task == Task::kClassification) print_top(report);
  print_counts(report);
  fmt::print("{} in {:.1f} s, {:.1f} images/s; everything is in {}\n",
             count_of(report.done, "image"), report.seconds, images_per_second(report),
             request.output.string());
}

/// Returns what all failures end with, or kExitFailure where they differ.
int tell_failures(const PredictReport& report) {
  if (report.failed == 0) return kExitDone;
  fmt::print(stderr, "lockstep: error: {} of {} images failed:\n", report.failed,
             report.images.size());
  int exit_code = kExitDone;
  for (const PredictedImage& image : report.images) {
    if (image.error.empty()) continue;
    fmt::print(stderr, "  {}\n", image.error);
    const bool same = exit_code == kExitDone || exit_code == image.exit_code;
    exit_code = same ? image.exit_code : kExitFailure;
  }
  return exit_code;
}

void declare_predict(Options& options, PredictArguments& arguments) {
  options.add_weights(arguments.target, arguments.config);
  options.add("IMAGES", arguments.images, "JPEG, PNG, TIFF and .npy files, and folders of them")
      .takes("FILE")
      .required();
  options.add_flag("--no-overlay", arguments.no_overlay,
                   "only class maps, no pictures of the classes over the images");
  options.add_flag("--probabilities", arguments.probabilities,
                   "also NAME.npy, the classes' probabilities [classes, height, width]");
  options.add_flag("--submission", arguments.submission,
                   "maps as the benchmark's server takes them: of layouts ade20k, cityscapes");
  options.add_flag("--force", arguments.force, "write over files that are there");
  options.add_augmentation(arguments.flip, arguments.scales);
  options.add_windows(arguments.windows);
  options.add_devices();
  options.add_overrides();
  options.add_output("DIR", "the folder to write to; made where it is not there");
  options.add_json();
}

int run_predict(const PredictArguments& arguments) {
  const StopSignals signals;
  PredictRequest request = request_of(arguments);
  request.stop = &signals.requested();
  request.progress = [](std::int64_t done, std::int64_t all) {
    show_progress({"predicting", "images", done, all});
  };
  const PredictReport report = predict_images(request);
  clear_progress();
  for (const std::string& warning : report.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(to_json(report, request.augmentation), 2));
  } else {
    print(report, request);
  }
  const int exit_code = tell_failures(report);
  if (!signals.requested()) return exit_code;
  const auto all = static_cast<std::int64_t>(report.images.size());
  fmt::print(stderr, "interrupted: {} of {} images are not predicted\n",
             all - report.done - report.failed, all);
  return kExitInterrupted;
}

}  // namespace

Command predict_command() {
  return {.name = "predict",
          .says = "Classes of images of one's own, as pictures or a table",
          .page = "predict",
          .examples =
              {{"lockstep predict runs/first photos -o predictions",
                "a class map and an overlay for every image in a folder"},
               {"lockstep predict runs/first photos -o probabilities --probabilities --no-overlay",
                "with the probabilities of all classes, for NumPy"}},
          .declare = declares(declare_predict, run_predict)};
}

}  // namespace lockstep
