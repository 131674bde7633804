// lockstep data check, data preview: a data set before it is trained on.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <ranges>

#include "app/command.h"
#include "compare/table.h"
#include "core/json.h"
#include "core/words.h"
#include "data/augment.h"
#include "data/normalize.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/io/image.h"
#include "run/confusion_matrix.h"
#include "train/before_training.h"
#include "train/inference/image_files.h"

namespace lockstep {
namespace {

struct DataArguments {
  CommonArguments common;
  std::string action;  // check, preview
  std::filesystem::path config;
  std::int64_t count = 0;  // -n: images to look at or to write; 0: not given, all or 12
};

std::string size_text(const SplitReport& split) {
  if (split.sizes.empty()) return "no readable image";
  const auto name = [](const std::pair<int, int>& size) {
    return fmt::format("{}x{}", size.first, size.second);
  };
  if (split.sizes.size() == 1) return "all " + name(split.sizes.begin()->first);
  const auto most =
      std::ranges::max_element(split.sizes, [](auto& a, auto& b) { return a.second < b.second; });
  const auto by_area = [](auto& a, auto& b) {
    return std::int64_t{a.first.first} * a.first.second <
           std::int64_t{b.first.first} * b.first.second;
  };
  const auto [small, large] = std::ranges::minmax_element(split.sizes, by_area);
  return fmt::format("{} sizes from {} to {}, most often {}", split.sizes.size(),
                     name(small->first), name(large->first), name(most->first));
}

void print_split(const SplitReport& split) {
  fmt::print("{}: {}{}, {}; {} % of the labels do not count\n", split.name,
             count_of(split.images, "image"),
             split.examined == split.images ? "" : fmt::format(", {} looked at", split.examined),
             size_text(split),
             format_number(percent(split.ignored, split.ignored + split.labels), 2));
}

void print_classes(const DataReport& report) {
  Table table{
      .header = {"class", "name", "train %", "train images", "val %", "val images", "weight"},
      .rows = {}};
  for (std::size_t c = 0; c < report.classes.size(); ++c) {
    table.rows.push_back(
        {fmt::format("{}", c), report.classes[c],
         format_number(percent(report.train.class_labels[c], report.train.labels), 3),
         fmt::format("{}", report.train.class_images[c]),
         format_number(percent(report.val.class_labels[c], report.val.labels), 3),
         fmt::format("{}", report.val.class_images[c]), fmt::format("{:.3f}", report.weights[c])});
  }
  fmt::print("\n{}", to_markdown(table));
  fmt::print("weight: median frequency of the classes / frequency of the class (training)\n");
}

/// Of 8 bits in 0..1, of others in units of their own.
std::string list_of(const std::vector<double>& values, bool eight_bits) {
  return eight_bits ? fmt::format("{:.3f}", fmt::join(values, ", "))
                    : fmt::format("{:.6g}", fmt::join(values, ", "));
}

std::string types_text(const SplitReport& split) {
  return joined(split.types | std::views::transform([](const auto& of_type) {
                  return fmt::format("{} {}", of_type.second.images, to_string(of_type.first));
                }));
}

void print_normalization(const SplitReport& train) {
  const bool eight_bits = train.types.size() == 1 && train.types.contains(PixelType::kUint8);
  if (!eight_bits || train.mean.size() != 3) {
    fmt::print("\ntraining images: {}, channels: {}\nleast = [{}]\nmost = [{}]\n",
               types_text(train), train.mean.size(), list_of(train.least, eight_bits),
               list_of(train.most, eight_bits));
  }
  fmt::print("\nmean and standard deviation of the training images, for [data]:\n");
  fmt::print("mean = [{}]\n", list_of(train.mean, eight_bits));
  fmt::print("std = [{}]\n\n", list_of(train.std, eight_bits));
}

void print_weights(const std::vector<double>& weights) {
  fmt::print("weights of the classes, for [loss], or class_weight = \"balanced\":\n");
  fmt::print("class_weight = [{:.3f}]\n\n", fmt::join(weights, ", "));
}

void print(const DataReport& report) {
  print_split(report.train);
  print_split(report.val);
  print_classes(report);
  const SplitReport& train = report.train;
  if (train.sizes.empty()) {
    fmt::print("\nno training image could be read: there is no mean and no standard deviation\n\n");
  } else {
    print_normalization(train);
    if (find_layout(report.options).task == Task::kSegmentation) print_weights(report.weights);
  }
  for (const std::string& warning : report.warnings) fmt::print("warning: {}\n", warning);
  if (report.warnings.empty() && !report.refusal) fmt::print("nothing to warn of\n");
}

Json to_json(const SplitReport& split) {
  Json sizes = Json::array();
  for (const auto& [size, count] : split.sizes)
    sizes.push_back({{"height", size.first}, {"width", size.second}, {"images", count}});
  Json types = Json::object();
  for (const auto& [type, found] : split.types) types[to_string(type)] = found.images;
  return {{"split", split.name},
          {"images", split.images},
          {"examined", split.examined},
          {"sizes", sizes},
          {"labels", split.labels},
          {"ignored", split.ignored},
          {"class_labels", split.class_labels},
          {"class_images", split.class_images},
          {"without_labels", split.without_labels},
          {"broken", split.broken},
          {"types", types},
          {"channels", split.mean.size()},
          {"least", split.least},
          {"most", split.most},
          {"mean", split.sizes.empty() ? Json(nullptr) : Json(split.mean)},
          {"std", split.sizes.empty() ? Json(nullptr) : Json(split.std)}};
}

std::string what_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

void print_json(const DataReport& report) {
  const Json json{{"layout", report.options.layout},
                  {"classes", report.classes},
                  {"train", to_json(report.train)},
                  {"val", to_json(report.val)},
                  {"class_weights", report.weights},
                  {"duplicates", report.duplicates},
                  {"warnings", report.warnings},
                  {"refusal", report.refusal ? Json(what_of(report.refusal)) : Json(nullptr)}};
  fmt::print("{}\n", json_text(json, 2));
}

/// `warnings`: of the configuration alone.
int print_check(const Config& config, const DataArguments& arguments,
                const std::vector<std::string>& warnings) {
  const std::string& devices = arguments.common.devices;
  DataReport report =
      check_data(config, parse_devices(devices_or_default(devices)), arguments.count);
  report.warnings.insert(report.warnings.begin(), warnings.begin(), warnings.end());
  if (arguments.common.json) {
    print_json(report);
  } else {
    print(report);
  }
  const bool broken = !report.train.broken.empty() || !report.val.broken.empty();
  if (broken && !config.data.skip_broken) return kExitData;
  if (report.refusal) std::rethrow_exception(report.refusal);
  return kExitDone;
}

LabelMap labels_of(const Batch& batch, std::size_t place) {
  LabelMap labels{batch.size.height, batch.size.width, {}};
  const std::size_t pixels = batch.labels.size() / batch.samples.size();
  const auto first = batch.labels.begin() + static_cast<std::ptrdiff_t>(place * pixels);
  labels.pixels.assign(first, first + static_cast<std::ptrdiff_t>(pixels));
  return labels;
}

/// A class's name as part of a file's.
std::string file_word(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == ' ') c = '_';
  }
  return name;
}

void write_sample(const Batch& batch, std::size_t place, const Config& config,
                  const std::string& stem) {
  const Image image = denormalize(batch, place, config.data);
  if (find_layout(config.data).task == Task::kClassification) {
    const Label label = batch.labels[place];
    const auto classes = class_names(config.data);
    const std::string name = label < classes.size() ? classes[label] : "ignored";
    write_png(stem + "_" + file_word(name) + ".png", image);
    return;
  }
  const LabelMap labels = labels_of(batch, place);
  const std::vector<Color> colors = class_colors(config.data);
  write_png(stem + "_image.png", image);
  write_png(stem + "_labels.png", labels, colors);
  write_png(stem + "_overlay.png", overlay(image, labels, colors));
}

/// Writes `count` augmented training samples into `folder`, which is made: of segmentations
/// NNN_image.png, NNN_labels.png (a palette PNG) and NNN_overlay.png, of classifications
/// NNN_CLASS.png. Returns what each is a view of.
std::vector<std::string> preview_data(const Config& config, std::int64_t count,
                                      const std::filesystem::path& folder) {
  if (folder.empty()) throw ConfigError("data preview: expected -o DIR, the folder to write to");
  make_output_folder(folder);
  TrainLoader loader(config.data,
                     {.batch = 1, .seed = config.run.seed, .divisor = config.size_divisor()});
  std::vector<std::string> samples;
  for (std::int64_t i = 0; i < count; ++i) {
    const Batch& batch = loader.next();
    write_sample(batch, 0, config, (folder / fmt::format("{:03}", i)).string());
    samples.push_back(loader.dataset().describe(batch.samples[0]));
  }
  return samples;
}

void show_preview(Config config, const DataArguments& arguments) {
  settle_normalization(config.data, config.run.seed);
  const std::filesystem::path& folder = arguments.common.output;
  const auto samples = preview_data(config, arguments.count == 0 ? 12 : arguments.count, folder);
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(Json{{"folder", folder.string()}, {"samples", samples}}, 2));
    return;
  }
  for (std::size_t i = 0; i < samples.size(); ++i) fmt::print("{:03}: {}\n", i, samples[i]);
  fmt::print("{} training samples, augmented as in training, are in {}\n", samples.size(),
             folder.string());
}

void declare_data(Options& options, DataArguments& arguments) {
  options
      .add("ACTION", arguments.action,
           "check: classes, sizes, mistakes; preview: training samples as pictures")
      .takes("check|preview")
      .required();
  options.add_config("CONFIG", arguments.config, "configuration (TOML)").required();
  options
      .add("-n,--count", arguments.count,
           "images: to look at per split (default: all), to write (default: 12)")
      .takes_count(1, 1000000000);
  options.add_devices();
  options.add_overrides();
  options.add_output("DIR", "preview: the folder to write to").goes_with({"preview"});
  options.add_json();
}

int run_data(const DataArguments& arguments) {
  std::vector<std::string> warnings;
  const Config config = load_config(arguments.config, arguments.common.overrides, &warnings,
                                    *arguments.common.tables);
  if (arguments.action == "check") return print_check(config, arguments, warnings);
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
  show_preview(config, arguments);
  return kExitDone;
}

}  // namespace

Command data_command() {
  return {.name = "data",
          .says = "Look at a data set: what it holds, what is wrong with it",
          .page = "data",
          .examples = {{"lockstep data check data/configs/quickstart.toml",
                        "sizes, classes and mistakes, before a training"},
                       {"lockstep data preview data/configs/quickstart.toml -n 4 -o preview",
                        "training samples as the network sees them, as pictures"}},
          .declare = declares(declare_data, run_data)};
}

}  // namespace lockstep
