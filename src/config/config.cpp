#include "config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "config/config_schema.h"
#include "config/config_source.h"
#include "config/diagnostics.h"
#include "config/judged_values.h"
#include "config/suggest.h"
#include "core/home_path.h"
#include "core/utf8.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr std::int64_t kDefaultEpochs = 20;
constexpr std::int64_t kDefaultGlobalBatch = 8;
constexpr float kDefaultFlip = 0.5F;

/// Gives the written keys their meaning: values, defaults and what must hold between them.
class ConfigReader {
 public:
  ConfigReader(const std::filesystem::path& path, const std::vector<std::string>& overrides,
               const Tables& tables)
      : source_(path, overrides, diagnostics_) {
    config_.tables = &tables;
    config_.data.layouts = &tables.layouts;
  }

  Config read(std::vector<std::string>* warnings);
  /// Who says what `key` is; empty: nobody. After `read`.
  std::string origin(const std::string& key) const {
    return has(key) ? location(source_.span(key)) : "";
  }

 private:
  void fill_defaults();
  void fill_from_layout();
  void fill_found_classes();
  void resolve_paths();
  std::filesystem::path resolved(const std::filesystem::path& written) const;
  void convert_momentum();
  void check();
  void check_data();
  void check_channels();
  void check_classes();
  void check_class_weights(const std::string& section, const LossOptions& options);
  void check_class_names();
  void check_loss_count();
  bool is_resolved(const std::vector<ConfigValue>& values) const;
  void judge();
  void warn_of_ignored_keys();
  void check_augment();
  void check_milestones();
  void check_norm();
  void check_windows();
  void check_exclusive(const std::string& a, const std::string& b);
  void check_model();
  void check_task(const Architecture& architecture);
  template <typename Table>
  bool is_known(const std::string& key, const std::string& name, const Table& table);
  const DataLayout* layout() const;  // null: there is none of that name
  bool has(const std::string& key) const { return source_.has(key); }
  void error(const std::string& key, const std::string& message, const std::string& hint = "") {
    diagnostics_.error(source_.span(key), message, hint);
  }

  Diagnostics diagnostics_;
  ConfigSource source_;
  Config config_;
  std::vector<MisplacedKey> misplaced_;
};

void ConfigReader::check_exclusive(const std::string& a, const std::string& b) {
  if (has(a) && has(b)) error(b, fmt::format("`{}` and `{}` exclude each other", a, b), "keep one");
}

void ConfigReader::fill_defaults() {
  if (!has("run.name")) config_.run.name = source_.path().stem().string();
  if (!has("run.max_iters") && !has("run.epochs")) config_.run.epochs = kDefaultEpochs;
  if (!has("batch.global") && !has("batch.per_device")) config_.batch.global = kDefaultGlobalBatch;
  resolve_paths();
  fill_from_layout();
  config_.model.num_classes = config_.data.num_classes;
  convert_momentum();
}

void ConfigReader::fill_from_layout() {
  DataOptions& data = config_.data;
  const DataLayout* layout = this->layout();
  if (layout == nullptr) return;
  const bool there = layout->generated || has("data.root");
  if (!has("data.num_classes") && there) {
    data.num_classes = static_cast<int>(layout_classes(data).size());
  }
  if (there) fill_found_classes();
  // Every image has a class: no number is free to say that it has none.
  if (layout->task == Task::kClassification && !has("data.ignore_index")) {
    data.ignore_index = std::numeric_limits<Label>::max();
  }
}

// A run that knows the names can be used where its data are not.
void ConfigReader::fill_found_classes() {
  DataOptions& data = config_.data;
  if (!data.has_classes_in_data() || has("data.classes")) return;
  try {
    std::vector<std::string> names = class_names(data);
    if (std::ranges::all_of(names, is_utf8)) data.classes = std::move(names);
  } catch (const Error&) {
    return;  // who needs them says why there are none
  }
}

const DataLayout* ConfigReader::layout() const {
  for (const DataLayout& layout : config_.tables->layouts) {
    if (layout.name == config_.data.layout) return &layout;
  }
  return nullptr;
}

void ConfigReader::resolve_paths() {
  config_.run.work_dir = expand_home(config_.run.work_dir);
  if (layout() != nullptr && !layout()->generated) config_.data.root = resolved(config_.data.root);
  config_.model.backbone_weights = resolved(config_.model.backbone_weights).string();
}

// In the current directory, or beside the configuration. What is nowhere stays as given: whoever
// opens it names it.
std::filesystem::path ConfigReader::resolved(const std::filesystem::path& written) const {
  if (written.empty()) return written;
  const std::filesystem::path path = expand_home(written);
  std::error_code ignored;
  const std::filesystem::path beside = source_.path().parent_path() / path;
  const bool is_beside = path.is_relative() && !std::filesystem::exists(path, ignored) &&
                         std::filesystem::exists(beside, ignored);
  return std::filesystem::absolute(is_beside ? beside : path, ignored).lexically_normal();
}

void ConfigReader::convert_momentum() {
  std::optional<double>& momentum = config_.bn.momentum;
  const MomentumConvention convention =
      std::exchange(config_.bn.momentum_convention, MomentumConvention::kTorch);
  if (convention == MomentumConvention::kTorch || !momentum || !has("bn.momentum")) return;
  // Rounded to twelve digits, so that 0.99 becomes 0.01 and not 0.010000000000000009.
  momentum = std::round((1 - *momentum) * 1e12) / 1e12;
}

/// Whether a table has an entry of that name; it is an error if not.
template <typename Table>
bool ConfigReader::is_known(const std::string& key, const std::string& name, const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.name);
  if (std::ranges::find(names, name) != names.end()) return true;
  const auto nearest = nearest_word(name, names);
  error(key, fmt::format("{}: expected one of: {}, got \"{}\"", key, fmt::join(names, ", "), name),
        nearest ? fmt::format("did you mean \"{}\"?", *nearest) : "");
  return false;
}

void ConfigReader::check_model() {
  if (!is_known("model.arch", config_.model.arch, config_.tables->models)) return;
  check_task(config_.architecture());
}

void ConfigReader::check_task(const Architecture& architecture) {
  if (layout() == nullptr || layout()->task == architecture.task) return;
  const auto gives = [](Task task) {
    return task == Task::kSegmentation ? "every pixel a class" : "an image one class";
  };
  error("model.arch",
        fmt::format("model.arch: \"{}\" gives {}, but data of layout \"{}\" give {}",
                    config_.model.arch, gives(architecture.task), config_.data.layout,
                    gives(layout()->task)),
        architecture.task == Task::kClassification ? "for example \"fcn_resnet50\" or \"unet\""
                                                   : "for example \"resnet18\" or \"resnet50\"");
}

void ConfigReader::check() {
  check_exclusive("run.max_iters", "run.epochs");
  check_exclusive("batch.global", "batch.per_device");
  for (const MisplacedKey& key : misplaced_) error(key.path, key.message, key.hint);
  int exponent = 0;
  if (std::frexp(config_.run.loss_scale, &exponent) != 0.5) {
    error("run.loss_scale",
          fmt::format("run.loss_scale is {}, but must be a power of two", config_.run.loss_scale),
          fmt::format("for example {}", std::exp2(exponent)));
  }
  if (config_.batch.global && config_.batch.accumulate > *config_.batch.global) {
    error(
        "batch.accumulate",
        fmt::format("batch.accumulate = {} cuts a batch of {} images into more micro-batches than "
                    "it has images",
                    config_.batch.accumulate, *config_.batch.global));
  }
  check_data();
  check_milestones();
  check_augment();
  check_classes();
  check_norm();
  check_windows();
}

void ConfigReader::check_windows() {
  if (!config_.eval.window) return;
  const Architecture architecture = config_.architecture();
  if (architecture.task == Task::kClassification) {
    error("eval.window", fmt::format("windows are for maps of pixels, but {} gives one class to an "
                                     "image; leave eval.window out",
                                     config_.model.arch));
  }
  const Size window = *config_.eval.window;
  if (std::min(window.height, window.width) < architecture.size_divisor) {
    error("eval.window",
          fmt::format("a window of {} is smaller than what {} divides by; its sides "
                      "must be at least {}",
                      to_string(window), config_.model.arch, architecture.size_divisor));
  }
}

void ConfigReader::check_milestones() {
  for (const double milestone : config_.schedule.milestones) {
    if (milestone < 1 || milestone == std::floor(milestone)) continue;
    error(
        "schedule.milestones",
        fmt::format("schedule.milestones: {} is neither a share below 1 nor a number of iterations",
                    milestone));
  }
}

void ConfigReader::check_norm() {
  const BatchNormConfig& bn = config_.bn;
  const bool frozen = bn.statistics() == StatisticsOf::kNobody;
  const std::string key = bn.freeze_at ? "bn.freeze_at" : "bn.mode";
  if (!bn.track_running_stats && (bn.freeze_at || bn.corrects() || frozen)) {
    error(key,
          fmt::format("{} needs running statistics, but bn.track_running_stats is false", key));
  }
  if (config_.run.cuda_graph && (bn.freeze_at || bn.corrects())) {
    error(key,
          fmt::format("{} changes a step on the way, but run.cuda_graph = true replays one step",
                      key));
  }
}

// Of images of other channels than three the defaults of mean and std say nothing, and a run writes
// them down all the same.
void ConfigReader::check_channels() {
  const PixelOptions& data = config_.data;
  const auto channels = static_cast<std::size_t>(data.channels);
  const auto check = [&](const char* key, std::size_t numbers, bool counts) {
    if (!has(key) || !counts || numbers == channels) return;
    error(key, fmt::format("{} has {} numbers, but data.channels is {}", key, numbers, channels),
          "one for each channel");
  };
  const PixelOptions defaults;
  check("data.mean", data.mean.size(), data.mean.size() != 1 && data.mean != defaults.mean);
  check("data.std", data.std.size(), data.std.size() != 1 && data.std != defaults.std);
  check("data.bands", data.bands.size(), true);
}

void ConfigReader::check_data() {
  check_channels();
  // A count that is there and 0 is wrong, and that has been said.
  const bool counted = config_.data.num_classes != 0 || has("data.num_classes");
  is_known("data.layout", config_.data.layout, config_.tables->layouts);
  if (layout() != nullptr && !layout()->generated && !has("data.root")) {
    error("data.root", "data.root is missing",
          "the folder of the data set, for example root = \"data/mine\"");
  }
  if (!counted && layout() != nullptr && !layout()->find_classes) {
    error("data.num_classes", "data.num_classes is missing");
  }
}

void ConfigReader::check_classes() {
  const auto classes = static_cast<std::size_t>(config_.data.num_classes);
  if (!config_.data.classes.empty() && classes != 0 && config_.data.classes.size() != classes) {
    error("data.classes", fmt::format("data.classes has {} names, but data.num_classes is {}",
                                      config_.data.classes.size(), classes));
  }
  check_class_names();
  check_loss_count();
  for (std::size_t i = 0; i < config_.losses.size(); ++i) {
    check_class_weights(section_in_list("loss", i, config_.losses.size()), config_.losses[i]);
  }
}

void ConfigReader::check_class_weights(const std::string& section, const LossOptions& options) {
  const auto classes = static_cast<std::size_t>(config_.data.num_classes);
  with_class_weights(options, [&](const char* name, const ClassWeights& weights) {
    if (weights.empty() || classes == 0 || weights.size() == classes) return;
    const std::string key = section + "." + name;
    error(key,
          fmt::format("{} has {} weights, but there are {} classes", key, weights.size(), classes));
  });
}

void ConfigReader::check_loss_count() {
  const std::size_t heads = config_.model.aux_head ? 2 : 1;
  if (heads * config_.losses.size() <= kMaxLosses) return;
  error("loss[0].type",
        fmt::format("{} losses at {} of a network are more than the {} that it may have",
                    config_.losses.size(), heads == 1 ? "the head" : "the two heads", kMaxLosses),
        "leave some out");
}

void ConfigReader::check_class_names() {
  const std::vector<std::string>& names = config_.data.classes;
  for (auto name = names.begin(); name != names.end(); ++name) {
    const auto first = std::find(names.begin(), name, *name);
    if (first == name) continue;
    error("data.classes",
          fmt::format("data.classes: \"{}\" is the name of the classes {} and {}", *name,
                      first - names.begin(), name - names.begin()),
          "give every class a name of its own");
    return;
  }
}

// A run's own config.toml has every key, with those that mean nothing in it: nobody wrote them. The
// names of classes may have been found just now.
bool ConfigReader::is_resolved(const std::vector<ConfigValue>& values) const {
  return std::ranges::all_of(values, [this](const ConfigValue& value) {
    return has(value.key) || value.key == "data.classes";
  });
}

// A run that is there was trained with what it says: it can be looked at, but not trained again.
void ConfigReader::judge() {
  const bool trained = is_resolved(config_values(config_));
  for (const JudgedValue& value : judge_values(config_)) {
    if (value.refused && !trained) {
      error(value.key, value.message, value.remedy);
    } else if (value.refused || !trained) {
      diagnostics_.warning(source_.span(value.key), to_string(value));
    }
  }
}

void ConfigReader::warn_of_ignored_keys() {
  const std::vector<ConfigValue> values = config_values(config_);
  // With -s a run may have keys that its file lacks.
  const bool resolved = source_.is_of_run() || is_resolved(values);
  // "schedule.type = \"poly\"".
  const auto written = [&](const std::string& key) {
    const auto found = std::ranges::find(values, key, &ConfigValue::key);
    return fmt::format("{} = {}", key, found == values.end() ? "" : found->value);
  };
  const auto warn = [&](bool ignored, const std::string& key, const std::string& with) {
    if (!ignored || !has(key)) return;
    const SourceSpan where = source_.span(key);
    const bool in_file = where.line > 0;
    if (resolved && in_file) return;
    diagnostics_.warning(where, fmt::format("{} means nothing with {}, and is ignored", key, with));
  };
  const DataLayout& layout = *this->layout();
  const std::string of_layout = written("data.layout");
  warn(!layout.pairs_by_name, "data.mask_suffix", of_layout);
  warn(!layout.pairs_by_name, "data.subfolders", of_layout);
  warn(layout.generated, "data.val_share", of_layout);
  warn(config_.data.val_share.has_value() && !layout.generated, "data.val",
       written("data.val_share"));
  const ScheduleType schedule = config_.schedule.type;
  const std::string of_schedule = written("schedule.type");
  warn(schedule != ScheduleType::kPoly, "schedule.power", of_schedule);
  warn(schedule != ScheduleType::kPoly && schedule != ScheduleType::kCosine, "schedule.min_lr",
       of_schedule);
  warn(schedule != ScheduleType::kStep, "schedule.gamma", of_schedule);
  warn(schedule != ScheduleType::kStep, "schedule.milestones", of_schedule);
  for (std::size_t i = 0; i < config_.losses.size(); ++i) {
    warn(!config_.model.aux_head, section_in_list("loss", i, config_.losses.size()) + ".aux_weight",
         "model.aux_head = false");
  }
  warn(config_.run.precision != DType::kFloat16, "run.loss_scale", written("run.precision"));
  warn(!config_.bn.takes_sync_layers(), "bn.sync_layers", written("bn.mode"));
  warn(config_.bn.eval_stats != EvalStats::kBatch && !config_.run.eval_disparity, "bn.eval_images",
       written("bn.eval_stats"));
  warn(config_.bn.lacks_running_statistics() && config_.bn.eval_stats != EvalStats::kOwn,
       "bn.eval_stats", "bn.track_running_stats = false");
  warn(config_.bn.lacks_chosen_statistics(), "bn.eval_stats", written("bn.mode"));
  warn(config_.ema.decay == 0, "ema.bn", "ema.decay = 0");
  for (const char* key : {"eval.overlap", "eval.blend"}) {
    warn(!config_.eval.window, key, "images in one piece (no eval.window)");
  }
  warn(!config_.data.augment || config_.data.augment->class_crops == 0,
       "data.augment.class_crops_of", "data.augment.class_crops = 0");
  for (const std::string& option : config_.architecture().ignored_options) {
    warn(true, "model." + option, written("model.arch"));
  }
}

void ConfigReader::check_augment() {
  const DataOptions& data = config_.data;
  if (data.augment && data.augment->crop_area && !data.augment->crop) {
    error("data.augment.crop_area", "data.augment.crop_area needs the size of the result",
          "set data.augment.crop = [224, 224], for example");
  }
  if (has("data.augment.crop_aspect") && !has("data.augment.crop_area")) {
    error("data.augment.crop_aspect", "data.augment.crop_aspect is of a random-resized crop",
          "set data.augment.crop_area = [0.08, 1], for example, or leave it out");
  }
  check_exclusive("data.augment.crop_area", "data.augment.scale");
  check_exclusive("data.resize", "data.val_resize");
}

Config ConfigReader::read(std::vector<std::string>* warnings) {
  if (source_.has_augment_section()) {
    config_.data.augment.emplace();
    config_.data.augment->hflip = kDefaultFlip;
  }
  auto [good, misplaced] = read_options(source_, config_, diagnostics_);
  misplaced_ = std::move(misplaced);
  fill_defaults();
  check();
  if (good) {
    check_model();
    judge();
  }
  diagnostics_.throw_if_errors();
  warn_of_ignored_keys();
  // Without running statistics an evaluated image is normalised by its own.
  if (config_.bn.lacks_running_statistics()) config_.bn.eval_stats = EvalStats::kOwn;
  if (config_.bn.lacks_chosen_statistics()) config_.bn.eval_stats = EvalStats::kDevice0;
  if (warnings != nullptr) *warnings = diagnostics_.warnings();
  return config_;
}

}  // namespace

const Tables& builtin_tables() {
  static const Tables tables;
  return tables;
}

Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                   std::vector<std::string>* warnings, const Tables& tables) {
  return ConfigReader(path, overrides, tables).read(warnings);
}

std::vector<ConfigValue> explain_config(const std::filesystem::path& path,
                                        const std::vector<std::string>& overrides,
                                        const Tables& tables) {
  ConfigReader reader(path, overrides, tables);
  const Config config = reader.read(nullptr);
  std::vector<ConfigValue> values = config_values(config, true);
  for (ConfigValue& value : values) value.origin = reader.origin(value.key);
  return values;
}

double Config::base_learning_rate(int devices) const {
  const auto lr = static_cast<double>(lockstep::base_learning_rate(optim.optimizer));
  const std::int64_t reference = optim.lr_reference_batch;
  if (reference == 0) return lr;
  return lr * static_cast<double>(global_batch(devices)) / static_cast<double>(reference);
}

std::optional<int> top_of(const std::string& text) {
  constexpr std::string_view kBefore = "top:";
  if (!text.starts_with(kBefore)) return std::nullopt;
  int top = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data() + kBefore.size(), end, top);
  return error == std::errc() && last == end && top >= 1 ? std::optional(top) : std::nullopt;
}

std::int64_t BatchNormConfig::freeze_step(std::int64_t steps) const {
  return std::llround(std::ceil(freeze_at.value_or(1) * static_cast<double>(steps)));
}

std::vector<ParameterGroup> Config::parameter_groups() const {
  std::vector<ParameterGroup> groups;
  for (const std::string& prefix : optim.freeze) {
    groups.push_back({.prefix = prefix, .frozen = true});
  }
  if (optim.head_lr_mult == 1) return groups;
  const std::vector<std::string> heads = architecture().heads;
  for (const std::string& head : heads) {
    if (std::ranges::find(optim.freeze, head) != optim.freeze.end()) continue;
    groups.push_back({.prefix = head, .lr_mult = optim.head_lr_mult});
  }
  if (!heads.empty()) return groups;
  throw ConfigError(concat("optim.head_lr_mult is not 1, but the model '", model.arch,
                           "' does not say which of its layers are its heads; leave it out"));
}

std::int64_t Config::global_batch(int devices) const {
  return batch.global ? *batch.global : batch.per_device.value_or(1) * devices;
}

std::int64_t Config::images_together(int devices) const {
  const auto cut = [](std::int64_t images, std::int64_t parts) {
    return (images + parts - 1) / parts;
  };
  const std::int64_t all = micro_batch(devices), own = cut(all, devices);
  if (bn.slices() > 1) return cut(own, bn.slices());
  if (bn.statistics() != StatisticsOf::kDevices || !bn.sync_layers.empty()) return own;
  return bn.sync_group == 0 ? all : std::min(all, own * bn.sync_group);
}

WindowOptions Config::windows(EvalStats stats) const {
  const bool by_image = bn.statistics() == StatisticsOf::kImage || stats == EvalStats::kOwn;
  return {.window = eval.window.value_or(Size{}),
          .overlap = eval.overlap,
          .blend = eval.blend.value_or(by_image ? Blend::kGaussian : Blend::kCrop),
          .divisor = static_cast<int>(architecture().size_divisor)};
}

std::int64_t Config::max_iters(std::int64_t batches_per_epoch) const {
  if (run.max_iters) return *run.max_iters;
  const std::int64_t epochs = run.epochs.value_or(kDefaultEpochs);
  if (epochs > kMostSteps / std::max<std::int64_t>(batches_per_epoch, 1)) {
    throw ConfigError(concat("run.epochs: ", epochs, " epochs of ", batches_per_epoch,
                             " steps are more than the ", kMostSteps, " steps of the longest run"));
  }
  return epochs * batches_per_epoch;
}

}  // namespace lockstep
