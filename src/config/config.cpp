#include "config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/config_schema.h"
#include "config/config_source.h"
#include "config/diagnostics.h"
#include "config/suggest.h"
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
    draft_.config.tables = &tables;
    draft_.config.data.layouts = &tables.layouts;
  }

  Config read(std::vector<std::string>* warnings);
  /// Who says what `key` is; empty: nobody. After `read`.
  std::string origin(const std::string& key) const {
    return has(key) ? location(source_.span(key)) : "";
  }

 private:
  bool read_values();  // false: a value was wrong
  void fill_defaults();
  void fill_from_layout();
  void resolve_paths();
  std::filesystem::path resolved(const std::filesystem::path& path) const;
  void convert_momentum();
  void fill_optimizer();
  void check();
  void check_optimizer_keys();
  void check_class_names();
  bool is_resolved(const std::vector<ConfigValue>& values) const;
  void warn_of_ignored_keys();
  void check_augment();
  void check_exclusive(const std::string& a, const std::string& b);
  void check_model();
  void check_task(const Architecture& architecture);
  void check_image_size(const Architecture& architecture);
  template <typename Table>
  bool is_known(const std::string& key, const std::string& name, const Table& table);
  const DataLayout* layout() const;  // null: there is none of that name
  bool has(const std::string& key) const { return source_.has(key); }
  void error(const std::string& key, const std::string& message, const std::string& hint = "") {
    diagnostics_.error(source_.span(key), message, hint);
  }

  Diagnostics diagnostics_;
  ConfigSource source_;
  ConfigDraft draft_;
};

bool ConfigReader::read_values() {
  bool good = true;
  for (const ConfigKey& key : config_keys()) {
    const toml::node* node = source_.find(key.path);
    if (node == nullptr) continue;
    const std::string wrong = key.read(draft_, *node);
    if (!wrong.empty()) error(key.path, key.path + ": " + wrong);
    good = good && wrong.empty();
  }
  return good;
}

void ConfigReader::check_exclusive(const std::string& a, const std::string& b) {
  if (has(a) && has(b)) error(b, fmt::format("`{}` and `{}` exclude each other", a, b), "keep one");
}

void ConfigReader::fill_defaults() {
  Config& config = draft_.config;
  if (!has("run.name")) config.run.name = source_.path().stem().string();
  if (!has("run.max_iters") && !has("run.epochs")) config.run.epochs = kDefaultEpochs;
  if (!has("batch.global") && !has("batch.per_device")) config.batch.global = kDefaultGlobalBatch;
  resolve_paths();
  fill_from_layout();
  config.model.num_classes = config.data.num_classes;
  convert_momentum();
  fill_optimizer();
}

void ConfigReader::fill_from_layout() {
  DataOptions& data = draft_.config.data;
  const DataLayout* layout = this->layout();
  if (layout == nullptr) return;
  const bool there = layout->generated || has("data.root");
  if (!has("data.num_classes") && there) {
    data.num_classes = static_cast<int>(layout_classes(data).size());
  }
  // Every image has a class: no number is free to say that it has none.
  if (layout->task == Task::kClassification && !has("data.ignore_index")) {
    data.ignore_index = std::numeric_limits<Label>::max();
  }
}

const DataLayout* ConfigReader::layout() const {
  for (const DataLayout& layout : draft_.config.tables->layouts) {
    if (layout.name == draft_.config.data.layout) return &layout;
  }
  return nullptr;
}

void ConfigReader::resolve_paths() {
  Config& config = draft_.config;
  if (layout() != nullptr && !layout()->generated) config.data.root = resolved(config.data.root);
  config.model.backbone_weights = resolved(config.model.backbone_weights).string();
}

// In the current directory, or beside the configuration. What is nowhere stays as given: whoever
// opens it names it.
std::filesystem::path ConfigReader::resolved(const std::filesystem::path& path) const {
  if (path.empty()) return path;
  std::error_code ignored;
  const std::filesystem::path beside = source_.path().parent_path() / path;
  const bool is_beside = path.is_relative() && !std::filesystem::exists(path, ignored) &&
                         std::filesystem::exists(beside, ignored);
  return std::filesystem::absolute(is_beside ? beside : path, ignored).lexically_normal();
}

void ConfigReader::convert_momentum() {
  std::optional<double>& momentum = draft_.config.bn.momentum;
  if (!momentum || !has("bn.momentum")) return;
  if (draft_.keras_momentum) {
    // Rounded to twelve digits, so that 0.99 becomes 0.01 and not 0.010000000000000009.
    momentum = std::round((1 - *momentum) * 1e12) / 1e12;
  } else if (*momentum > 0.5) {
    diagnostics_.warning(
        source_.span("bn.momentum"),
        fmt::format(
            "bn.momentum = {} is the weight of the new value and nearly forgets the old one; if it "
            "comes from Keras, set bn.momentum_convention = \"keras\"",
            *momentum));
  }
}

void ConfigReader::fill_optimizer() {
  OptimOptions& optim = draft_.config.optim;
  if (optim.type != OptimizerType::kAdamW) return;
  const AdamW adamw;
  if (!has("optim.lr")) optim.lr = adamw.lr;
  if (!has("optim.weight_decay")) optim.weight_decay = adamw.weight_decay;
  if (!has("optim.norm_weight_decay")) optim.norm_weight_decay = adamw.norm_weight_decay;
}

void ConfigReader::check_optimizer_keys() {
  const bool sgd = draft_.config.optim.type == OptimizerType::kSgd;
  const std::vector<std::string> of_sgd{"optim.momentum"},
      of_adamw{"optim.beta1", "optim.beta2", "optim.eps"};
  for (const std::string& key : sgd ? of_adamw : of_sgd) {
    if (!has(key)) continue;
    error(key,
          fmt::format("{} is a number of optim.type = \"{}\", but it is \"{}\"", key,
                      sgd ? "adamw" : "sgd", sgd ? "sgd" : "adamw"),
          sgd ? "leave it out" : "leave it out; optim.beta1 is what comes nearest");
  }
}

/// Whether a table has an entry of that name; it is an error if not.
template <typename Table>
bool ConfigReader::is_known(const std::string& key, const std::string& name, const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.name);
  if (std::find(names.begin(), names.end(), name) != names.end()) return true;
  const auto nearest = nearest_word(name, names);
  error(key, fmt::format("{}: expected one of: {}, got \"{}\"", key, fmt::join(names, ", "), name),
        nearest ? fmt::format("did you mean \"{}\"?", *nearest) : "");
  return false;
}

// Without crop and resize the size of a folder's images is known only when they are read.
void ConfigReader::check_model() {
  const Config& config = draft_.config;
  if (!is_known("model.arch", config.model.arch, config.tables->models)) return;
  const Architecture architecture = config.architecture();
  check_task(architecture);
  check_image_size(architecture);
}

void ConfigReader::check_task(const Architecture& architecture) {
  const Config& config = draft_.config;
  if (layout() == nullptr || layout()->task == architecture.task) return;
  const auto gives = [](Task task) {
    return task == Task::kSegmentation ? "every pixel a class" : "an image one class";
  };
  error("model.arch",
        fmt::format("model.arch: \"{}\" gives {}, but data of layout \"{}\" give {}",
                    config.model.arch, gives(architecture.task), config.data.layout,
                    gives(layout()->task)),
        architecture.task == Task::kClassification ? "for example \"fcn_resnet50\" or \"unet\""
                                                   : "for example \"resnet18\" or \"resnet50\"");
}

void ConfigReader::check_image_size(const Architecture& architecture) {
  const Config& config = draft_.config;
  std::optional<Size> size;
  std::string from;
  if (config.data.augment && config.data.augment->crop) {
    size = config.data.augment->crop, from = "data.augment.crop";
  } else if (config.data.resize) {
    size = config.data.resize, from = "data.resize";
  } else if (layout() != nullptr && layout()->generated) {
    size = config.data.size, from = "data.size";
  }
  const std::int64_t divisor = architecture.size_divisor;
  if (!size || (size->height % divisor == 0 && size->width % divisor == 0)) return;
  const auto down = [&](int extent) { return std::max(divisor, extent / divisor * divisor); };
  error(from,
        fmt::format("{} is [{}, {}], but a {} needs multiples of {}", from, size->height,
                    size->width, architecture.description, divisor),
        fmt::format("set data.augment.crop = [{}, {}]", down(size->height), down(size->width)));
}

void ConfigReader::check() {
  const Config& config = draft_.config;
  check_exclusive("run.max_iters", "run.epochs");
  check_exclusive("batch.global", "batch.per_device");
  check_optimizer_keys();
  int exponent = 0;
  if (std::frexp(config.run.loss_scale, &exponent) != 0.5) {
    error("run.loss_scale",
          fmt::format("run.loss_scale is {}, but must be a power of two", config.run.loss_scale),
          fmt::format("for example {}", std::exp2(exponent)));
  }
  if (config.batch.global && config.batch.accumulate > *config.batch.global) {
    error(
        "batch.accumulate",
        fmt::format("batch.accumulate = {} cuts a batch of {} images into more micro-batches than "
                    "it has images",
                    config.batch.accumulate, *config.batch.global));
  }
  const auto classes = static_cast<std::size_t>(config.data.num_classes);
  is_known("data.layout", config.data.layout, config.tables->layouts);
  if (layout() != nullptr && !layout()->generated && !has("data.root")) {
    error("data.root", "data.root is missing",
          "the folder of the data set, for example root = \"data/mine\"");
  }
  // Where it is there it is wrong, and that has been said.
  const bool lacks_count = classes == 0 && !has("data.num_classes");
  if (lacks_count && layout() != nullptr && !layout()->find_classes) {
    error("data.num_classes", "data.num_classes is missing");
  }
  check_augment();
  if (!config.data.classes.empty() && classes != 0 && config.data.classes.size() != classes) {
    error("data.classes", fmt::format("data.classes has {} names, but data.num_classes is {}",
                                      config.data.classes.size(), classes));
  }
  check_class_names();
  if (!config.loss.class_weight.empty() && classes != 0 &&
      config.loss.class_weight.size() != classes) {
    error("loss.class_weight",
          fmt::format("loss.class_weight has {} weights, but there are {} classes",
                      config.loss.class_weight.size(), classes));
  }
}

void ConfigReader::check_class_names() {
  const std::vector<std::string>& names = draft_.config.data.classes;
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

// A run's own config.toml has every key, with those that mean nothing in it: nobody wrote them.
bool ConfigReader::is_resolved(const std::vector<ConfigValue>& values) const {
  return std::all_of(values.begin(), values.end(),
                     [this](const ConfigValue& value) { return has(value.key); });
}

void ConfigReader::warn_of_ignored_keys() {
  const Config& config = draft_.config;
  const std::vector<ConfigValue> values = config_values(config);
  const bool resolved = is_resolved(values);
  // "schedule.type = \"poly\"".
  const auto written = [&](const std::string& key) {
    const auto found = std::find_if(values.begin(), values.end(),
                                    [&](const ConfigValue& value) { return value.key == key; });
    return fmt::format("{} = {}", key, found == values.end() ? "" : found->value);
  };
  const auto warn = [&](bool ignored, const std::string& key, const std::string& with) {
    if (!ignored || !has(key)) return;
    const SourceSpan where = source_.span(key);
    const bool in_file = where.line > 0;
    if (resolved && in_file) return;
    diagnostics_.warning(where, fmt::format("{} means nothing with {}, and is ignored", key, with));
  };
  const ScheduleType schedule = config.schedule.type;
  const std::string of_schedule = written("schedule.type");
  warn(schedule != ScheduleType::kPoly, "schedule.power", of_schedule);
  warn(schedule != ScheduleType::kStep, "schedule.gamma", of_schedule);
  warn(schedule != ScheduleType::kStep, "schedule.milestones", of_schedule);
  warn(!config.model.aux_head, "loss.aux_weight", "model.aux_head = false");
  warn(config.run.precision != DType::kFloat16, "run.loss_scale", written("run.precision"));
  warn(!config.bn.track_running_stats, "bn.eval_stats", "bn.track_running_stats = false");
  for (const std::string& option : config.architecture().ignored_options) {
    warn(true, "model." + option, written("model.arch"));
  }
}

void ConfigReader::check_augment() {
  const DataOptions& data = draft_.config.data;
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
    draft_.config.data.augment.emplace();
    draft_.config.data.augment->hflip = kDefaultFlip;
  }
  const bool good = read_values();
  fill_defaults();
  check();
  if (good) check_model();
  diagnostics_.throw_if_errors();
  warn_of_ignored_keys();
  if (warnings != nullptr) *warnings = diagnostics_.warnings();
  return draft_.config;
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
  std::vector<ConfigValue> values = config_values(config);
  for (ConfigValue& value : values) value.origin = reader.origin(value.key);
  return values;
}

double Config::base_learning_rate(int devices) const {
  const auto lr = static_cast<double>(optim.lr);
  const std::int64_t reference = optim.lr_reference_batch;
  if (reference == 0) return lr;
  return lr * static_cast<double>(global_batch(devices)) / static_cast<double>(reference);
}

Optimizer OptimOptions::optimizer() const {
  if (type == OptimizerType::kSgd) return Sgd{lr, momentum, weight_decay, norm_weight_decay};
  return AdamW{lr, beta1, beta2, eps, weight_decay, norm_weight_decay};
}

std::vector<ParameterGroup> Config::parameter_groups() const {
  std::vector<ParameterGroup> groups;
  if (optim.head_lr_mult == 1) return groups;
  for (const std::string& head : architecture().heads) {
    groups.push_back({.prefix = head, .lr_mult = optim.head_lr_mult});
  }
  if (!groups.empty()) return groups;
  throw ConfigError(concat("optim.head_lr_mult is not 1, but the model '", model.arch,
                           "' does not say which of its layers are its heads; leave it out"));
}

std::int64_t Config::global_batch(int devices) const {
  return batch.global ? *batch.global : batch.per_device.value_or(1) * devices;
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
