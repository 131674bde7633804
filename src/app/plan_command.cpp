// lockstep plan: what a training will take, before hours are spent.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "app/command.h"
#include "compare/table.h"
#include "core/json.h"
#include "core/words.h"
#include "lockstep/core/check.h"
#include "run/report_text.h"
#include "train/diagnosis/sync_layers.h"
#include "train/plan.h"

namespace lockstep {
namespace {

struct PlanArguments {
  CommonArguments common;
  std::filesystem::path config;
  int steps = 3;           // --steps: timed ones
  bool layers = false;     // --layers
  bool max_batch = false;  // --max-batch
  double memory = 0;       // --memory GiB for all devices; 0: what the host has left
};

constexpr double kMegabyte = 1 << 20;
constexpr double kGigabyte = 1 << 30;

double megabytes(std::size_t bytes) { return static_cast<double>(bytes) / kMegabyte; }

/// What programs may still take of the host's memory; 0 where the system does not say.
std::size_t host_memory_left() {
  std::ifstream stream("/proc/meminfo");
  for (std::string word; stream >> word;) {
    std::size_t kilobytes = 0;
    if (word == "MemAvailable:" && stream >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

/// Of all devices of the plan together, for --max-batch.
std::size_t memory_limit(const PlanArguments& arguments, const TrainingPlan& plan) {
  if (arguments.memory > 0) return static_cast<std::size_t>(arguments.memory * kGigabyte);
  const bool cpu = plan.devices.front().kind == DeviceKind::kCpu;
  const std::size_t left = cpu ? host_memory_left() : 0;
  if (left == 0) {
    throw ConfigError("--max-batch: say how much memory the devices have together, --memory GiB");
  }
  return left;
}

std::string left_out(const TrainingPlan& plan) {
  if (plan.dropped == 0) return "";
  return fmt::format("; {} images of each epoch are left out (batch.drop_last)", plan.dropped);
}

std::string crops(const TrainingPlan& plan) {
  const int count = plan.config.data.crops_per_image;
  return count == 1 ? "" : fmt::format(", each {} times in an epoch", count);
}

void print_size(const TrainingPlan& plan) {
  fmt::print("{} of {}x{}{}, {} per step on {}: {} per epoch{}\n",
             count_of(plan.train_images, "image"), plan.size.height, plan.size.width, crops(plan),
             plan.global_batch, count_of(plan.devices.size(), "device"),
             count_of(plan.steps_per_epoch, "step"), left_out(plan));
  const auto idle = std::ranges::count(plan.shares, 0);
  if (idle > 0)
    fmt::print("{} without an image: the batch is too small\n", count_of(idle, "device"));
  fmt::print("{}, {} of {}; {} parameters\n", count_of(plan.steps, "step"),
             count_of(plan.evaluations, "evaluation"), count_of(plan.val_images, "image"),
             plan.parameters);
}

void print_windows(const TrainingPlan& plan) {
  if (plan.config.architecture().task != Task::kSegmentation) return;
  if (!plan.receptive_radius) {
    fmt::print(
        "the network or its norm looks at the whole image: windows of it (eval.window) give other "
        "maps than one piece\n");
    return;
  }
  fmt::print(
      "the network looks {0} pixels around a pixel: windows (eval.window) that overlap by {1} or "
      "more give the map of one piece\n",
      *plan.receptive_radius, 2 * *plan.receptive_radius);
}

/// One character for a learning rate: none is 0, the highest is `most`.
const char* bar(double rate, double most) {
  constexpr const char* kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double part = most > 0 ? rate / most : 0;
  return kBars[std::clamp(static_cast<int>(part * 8 + 0.999), 0, 8)];
}

void print_schedule(const TrainingPlan& plan) {
  const double most = *std::ranges::max_element(plan.rates);
  std::string bars;
  for (const double rate : plan.rates) bars += bar(rate, most);
  const double first = plan.rates.front();
  const std::string by_way = most > first ? fmt::format(" by way of {:.2g}", most) : "";
  fmt::print("\nlearning rate, from {:.2g}{} to {:.2g}:\n|{}|\n", first, by_way, plan.rates.back(),
             bars);
}

void print_norms(const TrainingPlan& plan) {
  if (plan.norms.empty()) {
    fmt::print(
        "\nno BatchNorm takes statistics in training; this run's mode is {}: {} exchanges per "
        "step\n",
        to_string(plan.config.bn.mode), plan.exchanges);
    return;
  }
  Table table{.header = {"BatchNorm at", "layers", "channels", "values per channel: local", "sync",
                         fmt::format("ghost({})", plan.config.bn.virtual_devices)},
              .rows = {}};
  for (const NormPlan& norm : plan.norms) {
    table.rows.push_back({fmt::format("{}x{}", norm.height, norm.width),
                          norm.layers.size() == 1
                              ? norm.layers.front()
                              : fmt::format("{} from {}", norm.layers.size(), norm.layers.front()),
                          fmt::format("{}", norm.channels), fmt::format("{}", norm.local),
                          fmt::format("{}", norm.sync), fmt::format("{}", norm.ghost_slice)});
  }
  fmt::print("\n{}", to_markdown(table));
  fmt::print("this run's mode is {}: {} exchanges per step", to_string(plan.config.bn.mode),
             plan.exchanges);
  if (plan.exchanged_bytes > 0) {
    fmt::print(", {:.1f} KB of statistics", static_cast<double>(plan.exchanged_bytes) / 1024);
  }
  fmt::print("\n");
}

void print_memory(const TrainingPlan& plan) {
  const auto most = std::ranges::max_element(plan.measured_bytes);
  const auto rank = static_cast<std::size_t>(most - plan.measured_bytes.begin());
  fmt::print(
      "\nmemory per device: {:.1f} MB, {:.1f} of them for training, the rest for evaluation (the "
      "largest image, {}, as {}x{}); {:.1f} MB at most in the steps\n",
      megabytes(plan.planned_bytes[rank]), megabytes(plan.training_bytes[rank]), plan.largest_image,
      plan.largest_size.height, plan.largest_size.width, megabytes(plan.measured_bytes[rank]));
  if (plan.offloaded_bytes > 0) {
    fmt::print("of the host, for what waits there: {:.1f} MB for the first device\n",
               megabytes(plan.offloaded_bytes));
  }
}

void print_time(const TrainingPlan& plan, int steps) {
  fmt::print("step {:.1f} ms (median of {}), {:.1f} images/s; evaluating an image {:.1f} ms\n",
             1000 * plan.step_seconds, steps,
             static_cast<double>(plan.global_batch) / plan.step_seconds, 1000 * plan.image_seconds);
  fmt::print("the whole training: about {}\n", format_duration(plan.total_seconds));
}

/// "Conv2d" for "lockstep::Conv2dLayer"; layers of other namespaces keep theirs.
std::string short_kind(std::string kind) {
  constexpr std::string_view kOurs = "lockstep::", kLayer = "Layer";
  if (!kind.starts_with(kOurs)) return kind;
  kind.erase(0, kOurs.size());
  if (kind.ends_with(kLayer)) kind.erase(kind.size() - kLayer.size());
  return kind;
}

void print_layers(const TrainingPlan& plan) {
  Table table{.header = {"layer", "kind", "output", "parameters", "output MB", "saved MB"},
              .rows = {}};
  std::int64_t parameters = 0;
  std::size_t bytes = 0;
  for (const LayerSummary& layer : plan.layers) {
    table.rows.push_back({layer.name, short_kind(layer.kind), to_string(layer.output),
                          fmt::format("{}", layer.parameters),
                          fmt::format("{:.2f}", megabytes(layer.output_bytes)),
                          fmt::format("{:.2f}", megabytes(layer.saved_bytes))});
    parameters += layer.parameters;
    bytes += layer.output_bytes + layer.saved_bytes;
  }
  fmt::print("\nthe network of {}:\n{}", to_string(plan.devices.front()), to_markdown(table));
  fmt::print(
      "{} layers, {} parameters; outputs and what is saved for the backward pass: {:.1f} MB one by "
      "one; the plan of all activations and gradients takes {:.1f} MB\n",
      plan.layers.size(), parameters, megabytes(bytes), megabytes(plan.network_bytes));
}

Json layers_json(const TrainingPlan& plan) {
  Json layers = Json::array();
  for (const LayerSummary& layer : plan.layers) {
    Json shape = Json::array();
    for (int axis = 0; axis < layer.output.rank(); ++axis) shape.push_back(layer.output[axis]);
    layers.push_back({{"name", layer.name},
                      {"kind", short_kind(layer.kind)},
                      {"output", shape},
                      {"parameters", layer.parameters},
                      {"output_bytes", layer.output_bytes},
                      {"saved_bytes", layer.saved_bytes}});
  }
  return layers;
}

Json to_json(const TrainingPlan& plan) {
  Json norms = Json::array();
  for (const NormPlan& norm : plan.norms) {
    norms.push_back({{"height", norm.height},
                     {"width", norm.width},
                     {"layers", norm.layers},
                     {"channels", norm.channels},
                     {"local", norm.local},
                     {"sync", norm.sync},
                     {"ghost", norm.ghost_slice}});
  }
  Json devices = Json::array();
  for (const Device& device : plan.devices) devices.push_back(to_string(device));
  return {{"devices", devices},
          {"bn_mode", to_string(plan.config.bn.mode)},
          {"size", {plan.size.height, plan.size.width}},
          {"global_batch", plan.global_batch},
          {"receptive_radius", json_or_null(plan.receptive_radius)},
          {"shares", plan.shares},
          {"train_images", plan.train_images},
          {"val_images", plan.val_images},
          {"samples_per_epoch", plan.samples_per_epoch},
          {"steps_per_epoch", plan.steps_per_epoch},
          {"steps", plan.steps},
          {"dropped_per_epoch", plan.dropped},
          {"evaluations", plan.evaluations},
          {"largest_evaluation_image", plan.largest_image},
          {"largest_evaluation_size", {plan.largest_size.height, plan.largest_size.width}},
          {"parameters", plan.parameters},
          {"batch_norm", norms},
          {"exchanges_per_step", plan.exchanges},
          {"statistics_bytes_per_step", plan.exchanged_bytes},
          {"learning_rate", plan.rates},
          {"training_bytes", plan.training_bytes},
          {"planned_bytes", plan.planned_bytes},
          {"measured_bytes", plan.measured_bytes},
          {"offloaded_bytes", plan.offloaded_bytes},
          {"step_seconds", plan.step_seconds},
          {"evaluation_seconds_per_image", plan.image_seconds},
          {"total_seconds", plan.total_seconds},
          {"warnings", plan.warnings}};
}

void print_origins(const PlanArguments& arguments) {
  fmt::print("said by {} and -s; all else is default (lockstep config show):\n",
             arguments.config.string());
  for (const ConfigValue& value :
       explain_config(arguments.config, arguments.common.overrides, *arguments.common.tables)) {
    if (!value.origin.empty())
      fmt::print("  {:<40} {}\n", fmt::format("{} = {}", value.key, value.value), value.origin);
  }
  fmt::print("\n");
}

void declare_plan(Options& options, PlanArguments& arguments) {
  options.add_config("CONFIG", arguments.config, "configuration (TOML)").required();
  options.add_devices();
  options.add_overrides();
  options.add("--steps", arguments.steps, "steps to time").shows_default().takes_count(1, 1000000);
  options.add_flag("--layers", arguments.layers,
                   "also the network: every layer's output, parameters and memory");
  const CommandOption max_batch = options.add_flag("--max-batch", arguments.max_batch,
                                                   "also the largest global batch that fits");
  options
      .add("--memory", arguments.memory,
           "of all devices together, in GiB, for --max-batch; default: the host's free")
      .takes("GIB")
      .needs(max_batch)
      .takes_positive();
  options.add_json();
}

int run_plan(const PlanArguments& arguments) {
  const CommonArguments& common = arguments.common;
  std::vector<std::string> warnings;
  const Config written = load_config(arguments.config, common.overrides, &warnings, *common.tables);
  const Config config = with_sync_layers(written, common.devices);
  const std::vector<Device> devices = parse_devices(devices_or_default(common.devices));
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
  const TrainingPlan plan = plan_training(config, devices, arguments.steps);
  for (const std::string& warning : plan.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const std::int64_t largest =
      arguments.max_batch ? largest_batch(plan, memory_limit(arguments, plan)) : 0;
  if (common.json) {
    Json json = to_json(plan);
    if (arguments.max_batch) json["largest_batch"] = largest;
    if (arguments.layers) {
      json["layers"] = layers_json(plan);
      json["network_bytes"] = plan.network_bytes;
    }
    fmt::print("{}\n", json_text(json, 2));
    return kExitDone;
  }
  print_origins(arguments);
  print_size(plan);
  print_windows(plan);
  print_schedule(plan);
  if (arguments.layers) print_layers(plan);
  print_norms(plan);
  print_memory(plan);
  print_time(plan, arguments.steps);
  if (arguments.max_batch) {
    const bool few = config.batch.drop_last && largest > plan.samples_per_epoch;
    fmt::print("the largest global batch that fits, as memory grows with the batch: {}{}\n",
               largest,
               few ? fmt::format("; the data have images for {}", plan.samples_per_epoch) : "");
  }
  return kExitDone;
}

}  // namespace

Command plan_command() {
  return {
      .name = "plan",
      .says = "What a training will take: memory, time, BatchNorm's statistics, after a few steps",
      .page = "plan",
      .examples = {{"lockstep plan data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync",
                    "steps, learning rate, values per BatchNorm channel, memory and time"},
                   {"lockstep plan data/configs/quickstart.toml -d cpu:4 --max-batch --memory 4",
                    "also the largest batch for 4 GiB"},
                   {"lockstep plan data/configs/quickstart.toml --layers",
                    "also the network, layer by layer"}},
      .declare = declares(declare_plan, run_plan)};
}

}  // namespace lockstep
