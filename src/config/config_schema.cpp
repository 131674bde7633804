#include "config/config_schema.h"

#include <fmt/format.h>

#include "config/schema_types.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

using namespace schema;
using Keys = std::vector<ConfigKey>;

constexpr Range kPositive{.lo = 0, .above = true};
constexpr Range kNotNegative{.lo = 0};
constexpr Range kAtLeastOne{.lo = 1};
constexpr Range kSteps{.lo = 1, .hi = static_cast<double>(kMostSteps)};
constexpr Range kBelowOne{.lo = 0, .hi = 1, .below = true};
constexpr Range kFloatPositive{.lo = 1e-38, .hi = 1};  // a float has it with all its digits
constexpr Range kShare{.lo = 0, .hi = 1};
constexpr Range kLossScaleRange{.lo = 1, .hi = 0x1p126};
constexpr Range kClassCount{.lo = 1, .hi = 4096};

/// The way from a configuration, const or not, to one field (of the section, or of its base).
template <typename Section, typename Owner, typename Field>
auto field(Section Config::*section, Field Owner::*member) {
  return [=](auto& config) -> auto& { return config.*section.*member; };
}

/// The key does not count: it cannot change weights or final metrics.
ConfigKey uncounted(ConfigKey key) {
  key.counts = false;
  return key;
}

/// Words that a key takes among others, or that another place checks.
ConfigKey with_words(std::vector<std::string> words, ConfigKey key) {
  key.words = std::move(words);
  return key;
}

/// The key is written only where `present` holds.
ConfigKey only_if(bool (*present)(const Config&), ConfigKey key) {
  key.write = [present, write = key.write](const Config& c) { return present(c) ? write(c) : ""; };
  return key;
}

void add_run(Keys& keys) {
  const auto run = [](auto member) { return field(&Config::run, member); };
  keys.push_back(uncounted(text("run.name", run(&RunOptions::name), "of the run folder")));
  keys.push_back(
      uncounted({"run.work_dir", "run folders without -o lie here, as <name>/<time>-s<seed>",
                 [](ConfigDraft& draft, const toml::node& node) -> std::string {
                   if (!node.is_string()) return expected("a string", node);
                   draft.config.run.work_dir = *node.value<std::string>();
                   return "";
                 },
                 [](const Config& c) { return quoted(c.run.work_dir.string()); }}));
  keys.push_back(integer("run.seed", run(&RunOptions::seed), kNotNegative,
                         "of initial weights, order, augmentation"));
  keys.push_back(integer("run.max_iters", run(&RunOptions::max_iters), kSteps,
                         "this or epochs; neither: 20 epochs"));
  keys.push_back(integer("run.epochs", run(&RunOptions::epochs), kSteps, "this or max_iters"));
  keys.push_back(uncounted(integer("run.val_every", run(&RunOptions::val_every), kNotNegative,
                                   "iterations; 0: at the end")));
  keys.push_back(uncounted(integer("run.checkpoint_every", run(&RunOptions::checkpoint_every),
                                   kNotNegative, "iterations; 0: at the end")));
  keys.push_back(uncounted(integer("run.keep", run(&RunOptions::keep), {.lo = 1, .hi = 1e6},
                                   "newest iter_N checkpoints that stay")));
  keys.push_back(uncounted(integer("run.log_every", run(&RunOptions::log_every), kAtLeastOne,
                                   "iterations per log line")));
  keys.push_back(uncounted(boolean("run.rank_logs", run(&RunOptions::rank_logs),
                                   "every replica has a log of its own, ranks/N.jsonl")));
  keys.push_back(uncounted(choice("run.log_bn", run(&RunOptions::log_bn),
                                  {{"off", BatchNormLog::kOff},
                                   {"layers", BatchNormLog::kLayers},
                                   {"devices", BatchNormLog::kDevices},
                                   {"full", BatchNormLog::kFull}},
                                  "BatchNorm in events.jsonl: off, layers, devices, full")));
  keys.push_back(
      choice("run.precision", run(&RunOptions::precision),
             {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}},
             "of activations: fp32, bf16 (cuda), fp16 (cuda)"));
  keys.push_back(only_if([](const Config& c) { return c.run.precision == DType::kFloat16; },
                         real("run.loss_scale", run(&RunOptions::loss_scale), kLossScaleRange,
                              "fp16: the first one, a power of two; it follows the gradients")));
  keys.push_back(boolean("run.tf32", run(&RunOptions::tf32),
                         "fp32 convolutions may use TF32 (cuda; no effect with bf16 and fp16)"));
  keys.push_back(with_words(
      {"auto", "host", "event", "nccl"},
      uncounted(text("run.transport", run(&RunOptions::transport),
                     "of BatchNorm statistics: auto, host, event (cuda), nccl (cuda)"))));
  // It counts: NCCL adds in an order of its own.
  keys.push_back(choice("run.gradient_exchange", run(&RunOptions::gradient_exchange),
                        {{"auto", "auto"}, {"owner", "owner"}, {"all_reduce", "all_reduce"}},
                        "auto, owner (sums in a fixed order), all_reduce (cuda: NCCL)"));
  // It counts: GPUs then add in another order.
  keys.push_back(
      only_if([](const Config& c) { return c.run.placement_invariant; },
              boolean("run.placement_invariant", run(&RunOptions::placement_invariant),
                      "results that do not depend on how batches are spread over devices, or "
                      "an error that says why they do; GPUs are slower with it")));
  keys.push_back(uncounted(boolean("run.cuda_graph", run(&RunOptions::cuda_graph),
                                   "replay steps from a CUDA graph; the same bits (cuda)")));
  keys.push_back(uncounted(real("run.stall_timeout", run(&RunOptions::stall_timeout), kPositive,
                                "seconds until a waiting replica is a failure")));
  keys.push_back(uncounted(boolean("run.eval_all_stats", run(&RunOptions::eval_all_stats),
                                   "at the end also evaluate under the other eval_stats")));
  keys.push_back(only_if([](const Config& c) { return c.run.tensorboard; },
                         uncounted(boolean("run.tensorboard", run(&RunOptions::tensorboard),
                                           "also event files for TensorBoard, in tensorboard/"))));
  keys.push_back(uncounted(text("run.metrics_file", run(&RunOptions::metrics_file),
                                "state and progress for Prometheus, as OpenMetrics text")));
}

template <typename Get>
ConfigKey rgb(std::string path, Get get, Range range, std::string doc) {
  auto read = [get, range](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto values = number_list(node, 3, range);
    if (!values) return expected("[r, g, b], each " + describe(range, "a number"), node);
    for (std::size_t i = 0; i < 3; ++i) get(draft.config)[i] = static_cast<float>((*values)[i]);
    return "";
  };
  return {std::move(path), std::move(doc), read,
          [get](const Config& c) { return to_list(get(c)); }};
}

/// A list of strings that the data options hold. `check` throws ConfigError for one that is wrong.
ConfigKey data_texts(std::string path, std::vector<std::string> DataOptions::*member,
                     std::string what, std::string doc, void (*check)(const std::string&)) {
  auto read = [member, what, check](ConfigDraft& draft, const toml::node& node) -> std::string {
    const toml::array* texts = node.as_array();
    if (texts == nullptr) return expected("a list of " + what, node);
    std::vector<std::string>& values = draft.config.data.*member;
    values.clear();
    for (const toml::node& text : *texts) {
      if (!text.is_string()) return expected("a list of " + what, text);
      values.push_back(*text.value<std::string>());
      try {
        check(values.back());
      } catch (const ConfigError& error) {
        return error.what();
      }
    }
    return "";
  };
  auto write = [member](const Config& c) {
    return (c.data.*member).empty() ? std::string() : to_list(c.data.*member);
  };
  return {std::move(path), std::move(doc), read, write};
}

void check_color(const std::string& text) { parse_color(text); }

ConfigKey exposure_key() {
  auto read = [](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto values = number_list(node, 2, {.lo = 0, .hi = 255});
    if (!values || (*values)[0] <= 0 || (*values)[0] > 1) {
      return expected("[lo, offset], lo > 0 and <= 1, offset >= 0 and <= 255", node);
    }
    draft.config.data.exposure =
        ExposureOptions{static_cast<float>((*values)[0]), static_cast<float>((*values)[1])};
    return "";
  };
  auto write = [](const Config& c) -> std::string {
    if (!c.data.exposure) return "";
    return fmt::format("[{}, {}]", c.data.exposure->lo, c.data.exposure->offset);
  };
  return {"data.exposure", "[lo, offset]: a camera whose exposure varies", read, write};
}

ConfigKey root_key() {
  auto read = [](ConfigDraft& draft, const toml::node& node) -> std::string {
    if (!node.is_string()) return expected("a folder", node);
    draft.config.data.root = *node.value<std::string>();
    return "";
  };
  auto write = [](const Config& c) {
    return c.data.root.empty() ? std::string() : quoted(c.data.root.string());
  };
  return {"data.root",
          "folder of the data set; a relative path is one from the current directory, or else from "
          "the configuration",
          read, write};
}

void add_data(Keys& keys) {
  const auto data = [](auto member) { return field(&Config::data, member); };
  keys.push_back(text("data.layout", data(&DataOptions::layout),
                      "folder, list, voc, cityscapes, ade20k, camvid, streets (generated); "
                      "classification: imagefolder, cifar10, shapes (generated)"));
  keys.push_back(root_key());
  keys.push_back(text("data.train", data(&DataOptions::train), "name of the split"));
  keys.push_back(text("data.val", data(&DataOptions::val), "name of the split"));
  keys.push_back(integer("data.num_classes", data(&DataOptions::num_classes), kClassCount, ""));
  keys.push_back(integer("data.ignore_index", data(&DataOptions::ignore_index),
                         {.lo = 0, .hi = 65535},
                         "label value that does not count; default 255, classification: none"));
  keys.push_back(data_texts("data.classes", &DataOptions::classes, "class names",
                            "names, for tables", [](const std::string&) {}));
  keys.push_back(
      only_if([](const Config& c) { return c.data.mask_values != MaskValues::kClasses; },
              choice("data.mask_values", data(&DataOptions::mask_values),
                     {{"classes", MaskValues::kClasses}, {"binary", MaskValues::kBinary}},
                     "binary: black-and-white masks, 255 is class 1")));
  keys.push_back(data_texts("data.palette", &DataOptions::palette, "colours such as \"#804080\"",
                            "a colour for each class: of masks in RGB, and of pictures",
                            check_color));
  keys.push_back(data_texts("data.ignore_colors", &DataOptions::ignore_colors,
                            "colours such as \"#000000\"", "of masks in RGB: what does not count",
                            check_color));
  keys.push_back(only_if([](const Config& c) { return c.data.skip_broken; },
                         boolean("data.skip_broken", data(&DataOptions::skip_broken),
                                 "leave out samples that cannot be read, after reading all once")));
  keys.push_back(rgb("data.mean", data(&DataOptions::mean), {}, "of RGB in 0..1"));
  keys.push_back(rgb("data.std", data(&DataOptions::std), kPositive, "of RGB in 0..1"));
  keys.push_back(size("data.resize", data(&DataOptions::resize), "[height, width]"));
  keys.push_back(integer("data.val_resize", data(&DataOptions::val_resize), {.lo = 1, .hi = 65536},
                         "validation: the shorter side becomes this long"));
  keys.push_back(size("data.val_crop", data(&DataOptions::val_crop),
                      "validation: the central [height, width]"));
  keys.push_back(exposure_key());
  keys.push_back(boolean("data.shuffle", data(&DataOptions::shuffle), ""));
  keys.push_back(uncounted(integer("data.workers", data(&DataOptions::workers),
                                   {.lo = 0, .hi = 256}, "threads that decode and augment")));
  keys.push_back(uncounted(integer("data.cache_mb", data(&DataOptions::cache_mb),
                                   {.lo = 0, .hi = 1e6}, "memory for decoded images, per split")));
  keys.push_back(
      size("data.size", data(&DataOptions::size), "[height, width] of generated images"));
  keys.push_back(integer("data.train_images", data(&DataOptions::train_images),
                         {.lo = 1, .hi = 1e9}, "generated: how many"));
  keys.push_back(integer("data.val_images", data(&DataOptions::val_images), {.lo = 1, .hi = 1e9},
                         "generated: how many"));
}

/// [lo, hi] of augmentation, 0 < lo <= hi <= most: `get` gives it, `set` takes it.
template <typename Get, typename Set>
ConfigKey range(std::string path, Get get, Set set, double most, std::string doc) {
  auto read = [set, most](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto values = number_list(node, 2, {.lo = 0, .hi = most, .above = true});
    if (!values || (*values)[0] > (*values)[1]) {
      return expected(fmt::format("[lo, hi], 0 < lo <= hi <= {}", most), node);
    }
    set(*draft.config.data.augment,
        std::array{static_cast<float>((*values)[0]), static_cast<float>((*values)[1])});
    return "";
  };
  auto write = [get](const Config& c) {
    const std::array<float, 2> values = get(*c.data.augment);
    return fmt::format("[{}, {}]", values[0], values[1]);
  };
  return {std::move(path), std::move(doc), read, write};
}

void add_augment(Keys& keys) {
  const auto present = [](const Config& c) { return c.data.augment.has_value(); };
  const auto add = [&](ConfigKey key) { keys.push_back(only_if(present, std::move(key))); };
  add(size(
      "data.augment.crop", [](auto& c) -> auto& { return c.data.augment->crop; },
      "random crop [height, width]"));
  using Range2 = std::array<float, 2>;
  const auto resized = [](const Config& c) { return c.data.augment->crop_area.has_value(); };
  const auto whole = [](const Config& c) { return !c.data.augment->crop_area; };
  add(only_if(whole,
              range(
                  "data.augment.scale",
                  [](const AugmentOptions& o) {
                    return Range2{o.scale_lo, o.scale_hi};
                  },
                  [](AugmentOptions& o, const Range2& v) { o.scale_lo = v[0], o.scale_hi = v[1]; },
                  100, "random scale [lo, hi]")));
  add(only_if(resized,
              range(
                  "data.augment.crop_area", [](const AugmentOptions& o) { return *o.crop_area; },
                  [](AugmentOptions& o, const Range2& v) { o.crop_area = v; }, 1,
                  "random-resized crop: share of the image [lo, hi]")));
  add(only_if(resized,
              range(
                  "data.augment.crop_aspect", [](const AugmentOptions& o) { return o.crop_aspect; },
                  [](AugmentOptions& o, const Range2& v) { o.crop_aspect = v; }, 100,
                  "its width over its height [lo, hi]")));
  add(real(
      "data.augment.hflip", [](auto& c) -> auto& { return c.data.augment->hflip; }, kShare,
      "probability of a horizontal flip"));
  add(boolean(
      "data.augment.photometric", [](auto& c) -> auto& { return c.data.augment->photometric; },
      "brightness, contrast, saturation, hue"));
}

void add_batch(Keys& keys) {
  keys.push_back(integer("batch.global", field(&Config::batch, &BatchOptions::global), kAtLeastOne,
                         "images per step on all devices; this or per_device"));
  keys.push_back(integer("batch.per_device", field(&Config::batch, &BatchOptions::per_device),
                         kAtLeastOne, "images per step and device"));
  keys.push_back(boolean("batch.drop_last", field(&Config::batch, &BatchOptions::drop_last),
                         "leave out the last, smaller batch of an epoch"));
  keys.push_back(integer("batch.accumulate", field(&Config::batch, &BatchOptions::accumulate),
                         {.lo = 1, .hi = 65536},
                         "micro-batches per step, each with BatchNorm statistics of its own"));
}

void add_model(Keys& keys) {
  const auto model = [](auto member) { return field(&Config::model, member); };
  keys.push_back(text("model.arch", model(&ModelOptions::arch),
                      "unet, fcn_resnet50, deeplabv3_resnet50, pspnet_resnet50 (or 101); "
                      "classification: resnet18, 34, 50, 101, resnext50_32x4d"));
  keys.push_back(integer("model.width", model(&ModelOptions::width), {.lo = 1, .hi = 4096},
                         "unet: channels of the first stage"));
  keys.push_back(
      integer("model.depth", model(&ModelOptions::depth), {.lo = 1, .hi = 10}, "unet: stages"));
  keys.push_back(
      only_if([](const Config& c) { return c.model.resnet_width != ModelOptions{}.resnet_width; },
              integer("model.resnet_width", model(&ModelOptions::resnet_width),
                      {.lo = 1, .hi = 4096}, "ResNet: channels of the stem and of layer1")));
  keys.push_back(only_if([](const Config& c) { return c.model.small_images; },
                         boolean("model.small_images", model(&ModelOptions::small_images),
                                 "ResNet: a stem of one 3x3 convolution, without pooling")));
  keys.push_back(only_if([](const Config& c) { return c.model.aux_head; },
                         boolean("model.aux_head", model(&ModelOptions::aux_head),
                                 "a second head, whose loss counts loss.aux_weight times")));
  keys.push_back(real("model.dropout", model(&ModelOptions::dropout), kBelowOne,
                      "of the heads; default: the published one"));
  keys.push_back(
      only_if([](const Config& c) { return c.model.output_stride != ModelOptions{}.output_stride; },
              one_integer_of("model.output_stride", model(&ModelOptions::output_stride),
                             {8, 16, 32}, "8, 16 or 32: size of the image over the features'")));
  keys.push_back(only_if([](const Config& c) { return c.model.frozen_bn; },
                         boolean("model.frozen_bn", model(&ModelOptions::frozen_bn),
                                 "the backbone's BatchNorm keeps its running statistics")));
  keys.push_back(text("model.backbone_weights", model(&ModelOptions::backbone_weights),
                      "a file to begin with, as far as its names fit: .pth or safetensors"));
}

ConfigKey momentum_key() {
  auto read = [](ConfigDraft& draft, const toml::node& node) -> std::string {
    std::optional<double>& momentum = draft.config.bn.momentum;
    if (node.is_string() && *node.value<std::string>() == "cumulative") {
      momentum.reset();
      return "";
    }
    if (!node.is_number() || !contains(kShare, *node.value<double>())) {
      return expected("a number >= 0 and <= 1, or \"cumulative\"", node);
    }
    momentum = *node.value<double>();
    return "";
  };
  auto write = [](const Config& c) {
    return c.bn.momentum ? to_value(*c.bn.momentum) : quoted("cumulative");
  };
  return {"bn.momentum", "weight of the new value, or \"cumulative\"", read, write};
}

ConfigKey momentum_convention_key() {
  auto read = [](ConfigDraft& draft, const toml::node& node) -> std::string {
    const std::string value = node.value_or(std::string());
    if (!node.is_string() || (value != "torch" && value != "keras")) {
      return expected_choice({"torch", "keras"}, node);
    }
    draft.keras_momentum = value == "keras";
    return "";
  };
  return {"bn.momentum_convention", "keras: momentum is the weight of the old value", read,
          [](const Config&) { return quoted("torch"); }};
}

void add_batch_norm(Keys& keys) {
  const auto bn = [](auto member) { return field(&Config::bn, member); };
  keys.push_back(choice("bn.mode", bn(&BatchNormOptions::mode),
                        {{"local", BatchNormMode::kLocal},
                         {"sync", BatchNormMode::kSync},
                         {"ghost", BatchNormMode::kGhost}},
                        "local (per device), sync, ghost (slices of each device's batch)",
                        {{"virtual", BatchNormMode::kGhost}}));
  keys.push_back(integer("bn.virtual_devices", bn(&BatchNormOptions::virtual_devices),
                         {.lo = 1, .hi = 65536}, "ghost: slices per device"));
  keys.push_back(integer("bn.sync_group", bn(&BatchNormConfig::sync_group), {.lo = 0, .hi = 65536},
                         "sync: devices per group, 0: all"));
  keys.push_back(real("bn.eps", bn(&BatchNormOptions::eps), kPositive, ""));
  keys.push_back(choice("bn.eps_mode", bn(&BatchNormOptions::eps_mode),
                        {{"add", EpsMode::kAdd}, {"clamp", EpsMode::kClamp}},
                        "1/sqrt(var + eps) or 1/sqrt(max(var, eps))"));
  keys.push_back(with_words({"cumulative"}, momentum_key()));
  keys.push_back(with_words({"torch", "keras"}, momentum_convention_key()));
  keys.push_back(boolean("bn.affine", bn(&BatchNormOptions::affine), ""));
  keys.push_back(boolean("bn.track_running_stats", bn(&BatchNormOptions::track_running_stats), ""));
  keys.push_back(choice("bn.eval_stats", bn(&BatchNormConfig::eval_stats),
                        {{"device0", EvalStats::kDevice0},
                         {"mean", EvalStats::kMean},
                         {"pooled", EvalStats::kPooled},
                         {"precise", EvalStats::kPrecise}},
                        "what evaluation uses: device0, mean, pooled, precise"));
  keys.push_back(integer("bn.precise_iters", bn(&BatchNormConfig::precise_iters), kAtLeastOne,
                         "precise: training batches behind the statistics"));
}

void add_loss(Keys& keys) {
  keys.push_back(choice("loss.type", field(&Config::loss, &LossOptions::type),
                        {{"cross_entropy", "cross_entropy"}}, ""));
  keys.push_back(numbers("loss.class_weight", field(&Config::loss, &LossOptions::class_weight),
                         kNotNegative, "one per class"));
  keys.push_back(only_if([](const Config& c) { return c.model.aux_head; },
                         real("loss.aux_weight", field(&Config::loss, &LossOptions::aux_weight),
                              kNotNegative, "of the auxiliary head's loss in the sum")));
}

void add_optimizer(Keys& keys) {
  const auto optim = [](auto member) { return field(&Config::optim, member); };
  const auto add_for_sgd = [&](ConfigKey key) {
    keys.push_back(only_if([](const Config& c) { return c.optim.type == OptimizerType::kSgd; },
                           std::move(key)));
  };
  const auto add_for_adamw = [&](ConfigKey key) {
    keys.push_back(only_if([](const Config& c) { return c.optim.type == OptimizerType::kAdamW; },
                           std::move(key)));
  };
  keys.push_back(choice("optim.type", optim(&OptimOptions::type),
                        {{"sgd", OptimizerType::kSgd}, {"adamw", OptimizerType::kAdamW}},
                        "sgd, adamw"));
  keys.push_back(real("optim.lr", optim(&OptimOptions::lr), kNotNegative, ""));
  keys.push_back(integer("optim.lr_reference_batch", optim(&OptimOptions::lr_reference_batch),
                         kNotNegative,
                         "lr is for this global batch, and scaled to the run's; 0: as it is"));
  add_for_sgd(real("optim.momentum", optim(&OptimOptions::momentum), kBelowOne, "sgd"));
  add_for_adamw(real("optim.beta1", optim(&OptimOptions::beta1), kBelowOne, "adamw"));
  add_for_adamw(real("optim.beta2", optim(&OptimOptions::beta2), kBelowOne, "adamw"));
  add_for_adamw(real("optim.eps", optim(&OptimOptions::eps), kFloatPositive, "adamw"));
  keys.push_back(real("optim.weight_decay", optim(&OptimOptions::weight_decay), kNotNegative, ""));
  keys.push_back(real("optim.norm_weight_decay", optim(&OptimOptions::norm_weight_decay),
                      kNotNegative, "of gamma and beta"));
  keys.push_back(only_if([](const Config& c) { return c.optim.head_lr_mult != 1; },
                         real("optim.head_lr_mult", optim(&OptimOptions::head_lr_mult),
                              kNotNegative, "times lr: of the model's last layers")));
}

void add_schedule(Keys& keys) {
  const auto schedule = [](auto member) { return field(&Config::schedule, member); };
  keys.push_back(choice("schedule.type", schedule(&ScheduleOptions::type),
                        {{"poly", ScheduleType::kPoly},
                         {"constant", ScheduleType::kConstant},
                         {"step", ScheduleType::kStep},
                         {"cosine", ScheduleType::kCosine}},
                        "poly, constant, step, cosine"));
  keys.push_back(real("schedule.power", schedule(&ScheduleOptions::power), kNotNegative, "poly"));
  keys.push_back(real("schedule.gamma", schedule(&ScheduleOptions::gamma), kNotNegative,
                      "step: factor at each milestone"));
  keys.push_back(numbers("schedule.milestones", schedule(&ScheduleOptions::milestones),
                         {.lo = 0, .hi = 1, .above = true, .below = true},
                         "step: shares of max_iters; default [2/3, 8/9]"));
  keys.push_back(integer("schedule.warmup_iters", schedule(&ScheduleOptions::warmup_iters),
                         kNotNegative, "linear warm-up"));
  keys.push_back(real("schedule.warmup_ratio", schedule(&ScheduleOptions::warmup_ratio), kShare,
                      "first learning rate / lr"));
}

Keys make_keys() {
  Keys keys;
  add_run(keys);
  add_data(keys);
  add_augment(keys);
  add_batch(keys);
  add_model(keys);
  add_batch_norm(keys);
  add_loss(keys);
  add_optimizer(keys);
  add_schedule(keys);
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const Keys keys = make_keys();
  return keys;
}

std::string section_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

std::string name_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

}  // namespace lockstep
