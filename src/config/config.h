#pragma once
// The configuration file (TOML), resolved. Each module owns the struct of its section; this file
// gathers them and knows how to read, check and write them (core/options.h). Unknown keys are
// errors with file, line and a suggestion.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/windows.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/sync/sync_group.h"

namespace lockstep {

/// What of BatchNorm's statistics every log step writes to events.jsonl.
enum class BatchNormLog : std::uint8_t {
  kOff,      // nothing is read
  kLayers,   // per layer, how far the devices' statistics lie apart
  kDevices,  // and per layer and device, in a few numbers; and what tells whether replicas are
             // equal
  kFull,     // and all channels
};
constexpr auto names_of(BatchNormLog) {
  return std::to_array<Named<BatchNormLog>>({{"off", BatchNormLog::kOff},
                                             {"layers", BatchNormLog::kLayers},
                                             {"devices", BatchNormLog::kDevices},
                                             {"full", BatchNormLog::kFull}});
}

/// Those that activations may have.
constexpr auto names_of(DType) {
  return std::to_array<Named<DType>>(
      {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}});
}

/// Of the longest run: a training keeps its losses and times in memory.
inline constexpr std::int64_t kMostSteps = 100'000'000;

struct RunOptions {
  std::string name;  // default: the configuration file's stem
  std::filesystem::path work_dir = "runs";
  std::uint64_t seed = 0;
  std::optional<std::int64_t> max_iters, epochs;  // never both
  std::int64_t val_every = 0, checkpoint_every = 0;
  int keep = 3;
  std::int64_t log_every = 50;
  bool rank_logs = false;
  BatchNormLog log_bn = BatchNormLog::kLayers;
  DType precision = DType::kFloat32;
  double loss_scale = 65536;
  bool tf32 = true;
  bool portable = false;
  TransportKind transport = TransportKind::kAuto;
  GradientExchangeKind gradient_exchange = GradientExchangeKind::kAuto;
  bool placement_invariant = false;
  bool cuda_graph = false;
  double stall_timeout = 60;
  bool eval_own = true;
  bool eval_all_stats = false;
  bool eval_disparity = false;
  bool tensorboard = false;
  std::optional<std::int64_t> profile_at;
  std::int64_t profile_steps = 10;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    visit_run(v);
    visit_logs(v);
    visit_computation(v);
    visit_outputs(v);
  }

 private:
  template <typename Visitor>
  void visit_run(Visitor& v) {
    const Limits steps{.lo = 1, .hi = static_cast<double>(kMostSteps)};
    v("name", name, "of the run folder", {.counts = false});
    v("work_dir", work_dir, "run folders without -o lie here, as <name>/<time>-s<seed>",
      {.counts = false, .even_empty = true});
    v("seed", seed, "of initial weights, order, augmentation", {.in = limits::kNotNegative});
    v("max_iters", max_iters, "this or epochs; neither: 20 epochs", {.in = steps});
    v("epochs", epochs, "this or max_iters", {.in = steps});
    v("val_every", val_every, "iterations; 0: at the end",
      {.in = limits::kNotNegative, .counts = false});
    v("checkpoint_every", checkpoint_every, "iterations; 0: at the end",
      {.in = limits::kNotNegative, .counts = false});
    v("keep", keep, "newest iter_N checkpoints that stay",
      {.in = {.lo = 1, .hi = 1e6}, .counts = false});
  }
  template <typename Visitor>
  void visit_logs(Visitor& v) {
    v("log_every", log_every, "iterations per log line",
      {.in = limits::kAtLeastOne, .counts = false});
    v("rank_logs", rank_logs, "every replica has a log of its own, ranks/N.jsonl",
      {.counts = false});
    v("log_bn", log_bn, "BatchNorm in events.jsonl: off, layers, devices, full", {.counts = false});
  }
  template <typename Visitor>
  void visit_computation(Visitor& v) {
    v("precision", precision, "of activations and their gradients: fp32, bf16, fp16 (cuda)");
    v("loss_scale", loss_scale, "fp16: the first one, a power of two; it follows the gradients",
      {.in = {.lo = 1, .hi = 0x1p126}, .written = precision == DType::kFloat16});
    v("tf32", tf32,
      "fp32 convolutions may round more: TF32 where the GPU has it, as in PyTorch, 4x4 tiles on "
      "the CPU; false: exact fp32",
      {.former_default = "false"});
    v("portable", portable, "the same bits on every x86-64 processor with AVX2 (cpu; slower)",
      {.written = portable});
    v("transport", transport, "of BatchNorm statistics: auto, host, event (cuda), nccl (cuda)",
      {.counts = false});
    // It counts: NCCL adds in an order of its own.
    v("gradient_exchange", gradient_exchange,
      "auto, owner (sums in a fixed order), all_reduce (cuda: NCCL)");
    // It counts: GPUs then add in another order.
    v("placement_invariant", placement_invariant,
      "results that do not depend on how batches are spread over devices, or an error that says "
      "why they do; GPUs are slower with it",
      {.written = placement_invariant});
    v("cuda_graph", cuda_graph, "replay steps from a CUDA graph; the same bits (cuda)",
      {.counts = false});
    v("stall_timeout", stall_timeout, "seconds until a waiting replica is a failure",
      {.in = limits::kPositive, .counts = false});
  }
  template <typename Visitor>
  void visit_outputs(Visitor& v) {
    v("eval_own", eval_own, "at the end also evaluate each image by its own statistics",
      {.counts = false, .written = !eval_own});
    v("eval_all_stats", eval_all_stats, "at the end also evaluate under the other eval_stats",
      {.counts = false});
    v("eval_disparity", eval_disparity,
      "every evaluation also by batch statistics, the last by precise ones, and what that shows",
      {.counts = false, .written = eval_disparity});
    v("tensorboard", tensorboard, "also event files for TensorBoard, in tensorboard/",
      {.counts = false, .written = tensorboard});
    const bool profiled = profile_at.has_value();
    v("profile_at", profile_at, "the step before which a waiting profiler is started (cuda)",
      {.in = limits::kNotNegative, .counts = false, .written = profiled});
    v("profile_steps", profile_steps, "after which it is stopped again",
      {.in = limits::kAtLeastOne, .counts = false, .written = profiled});
  }
};

struct BatchOptions {
  std::optional<std::int64_t> global, per_device;  // one of the two; neither: global = 8
  bool drop_last = true;
  int accumulate = 1;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    constexpr Limits kImages{.lo = 1, .hi = 1'000'000};  // so many on any devices are a number
    v("global", global, "images per step on all devices; this or per_device", {.in = kImages});
    v("per_device", per_device, "images per step and device", {.in = kImages});
    v("drop_last", drop_last, "leave out the last, smaller batch of an epoch");
    v("accumulate", accumulate,
      "micro-batches per step, each with BatchNorm statistics of its own, but see bn.accumulated",
      {.in = {.lo = 1, .hi = 65536}});
  }
};

/// What spares memory and changes no result.
struct MemoryOptions {
  bool recompute = false;
  bool offload = false;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("recompute", recompute,
      "compute normalised values and activations again in the backward pass, not keep them",
      {.counts = false, .written = recompute});
    v("offload", offload,
      "let what the backward pass needs wait in memory of the host meanwhile (GPUs)",
      {.counts = false, .written = offload});
  }
};

/// Which statistics an evaluation normalises by. The first four are running ones.
enum class EvalStats : std::uint8_t {
  kDevice0,  // device 0's, as DataParallel keeps them
  kMean,     // mean over devices of running_mean and of running_var
  kPooled,   // as kMean, plus the variance of the devices' means
  kPrecise,  // recomputed from training images with the final weights
  kBatch,    // the evaluated images' own, some images at a time
  kOwn,      // each image's own
};
constexpr auto names_of(EvalStats) {
  return std::to_array<Named<EvalStats>>({{"device0", EvalStats::kDevice0},
                                          {"mean", EvalStats::kMean},
                                          {"pooled", EvalStats::kPooled},
                                          {"precise", EvalStats::kPrecise},
                                          {"batch", EvalStats::kBatch},
                                          {"own", EvalStats::kOwn}});
}
/// Whether they are kept beside the weights, and not taken of what is evaluated.
constexpr bool are_running(EvalStats stats) {
  return stats != EvalStats::kBatch && stats != EvalStats::kOwn;
}

enum class MomentumConvention : std::uint8_t {
  kTorch,  // momentum is the weight of the new value
  kKeras,  // of the old one
};
constexpr auto names_of(MomentumConvention) {
  return std::to_array<Named<MomentumConvention>>(
      {{"torch", MomentumConvention::kTorch}, {"keras", MomentumConvention::kKeras}});
}

/// K of "top:K", from 1 on; none: the text is no such thing.
std::optional<int> top_of(const std::string& text);

/// The norm layer of the network, and what its statistics are taken for.
struct BatchNormConfig : BatchNormOptions {
  int sync_group = 0;  // kSync: consecutive devices that share their statistics; 0: all
  /// What `momentum` is in the file; it has been converted when that is read.
  MomentumConvention momentum_convention = MomentumConvention::kTorch;
  MicroBatches accumulated = MicroBatches::kEvery;
  EvalStats eval_stats = EvalStats::kDevice0;
  /// kBatch: images that are normalised together; none: as many as in training.
  std::optional<std::int64_t> eval_images = {};
  std::int64_t precise_iters = 50;  // kPrecise: training batches behind the statistics
  /// Share of the steps after which statistics are frozen (DataParallel::freeze_statistics).
  std::optional<double> freeze_at = {};
  /// kRenorm: share of the steps that are without a correction: 5000 of 160000 where Ioffe (2017)
  /// trained. BatchNormOptions::renorm_warmup is made of it.
  double renorm_warmup_share = 1.0 / 32;

  /// K where sync_layers is "top:K", which is no pattern: with_sync_layers puts names in its place.
  std::optional<int> sync_top() const {
    return sync_layers.size() == 1 ? top_of(sync_layers.front()) : std::nullopt;
  }
  /// Whether statistics are of several images, and taken in training.
  bool measures_batches() const {
    return statistics() != StatisticsOf::kImage && statistics() != StatisticsOf::kNobody;
  }
  /// Whether all devices have the same running statistics, or none, however many they are.
  bool shares_statistics() const {
    const bool all = statistics() == StatisticsOf::kDevices && sync_group == 0;
    return !measures_batches() || (all && sync_layers.empty());
  }
  /// Whether a training keeps none that an evaluation could take.
  bool lacks_running_statistics() const { return !track_running_stats && measures_batches(); }
  /// Whether `eval_stats` asks for statistics of batches, and no layer takes any.
  bool lacks_chosen_statistics() const {
    return !measures_batches() &&
           (eval_stats == EvalStats::kBatch || eval_stats == EvalStats::kPrecise);
  }
  /// Whether an evaluation normalises by other statistics than a training step does.
  bool has_running_statistics() const { return track_running_stats && measures_batches(); }
  /// The first of so many steps whose statistics are frozen; `steps` where none is.
  std::int64_t freeze_step(std::int64_t steps) const;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    BatchNormOptions::visit_options(v);
    v("sync_layers", sync_layers,
      "sync: the layers that synchronize, by patterns of their names, or the K that diagnose ranks "
      "first; others are local; none: all; ghost: others are in slices; none: no layer",
      {.what = "patterns of names, or \"top:K\", K >= 1",
       .alone = [](const std::string& text) { return top_of(text).has_value(); },
       .after = "mode"});
    v("sync_group", sync_group, "sync: devices per group, 0: all",
      {.in = {.lo = 0, .hi = 65536}, .after = "virtual_devices"});
    v("momentum_convention", momentum_convention, "keras: momentum is the weight of the old value",
      {.after = "momentum"});
    v("accumulated", accumulated,
      "statistics with batch.accumulate: micro_batch, or exact, of the whole batch: the results of "
      "accumulate = 1, bit for bit",
      {.written = accumulated != MicroBatches::kEvery});
    v("eval_stats", eval_stats,
      "what evaluation normalises by: running statistics (device0; mean or pooled over devices; "
      "precise), batch, own (each image's)");
    v("eval_images", eval_images,
      "batch: evaluated images that are normalised together; default: as many as in training",
      {.in = {.lo = 1, .hi = 65536}});
    v("precise_iters", precise_iters, "precise: training batches behind the statistics",
      {.in = limits::kAtLeastOne});
    v("freeze_at", freeze_at,
      "share of the steps after which BatchNorm is frozen: running statistics, no exchange",
      {.in = limits::kShare});
    v("renorm_warmup", renorm_warmup_share,
      "renorm: share of the steps without a correction, which then grows",
      {.in = limits::kBelowOne,
       .written = corrects() || renorm_warmup_share != 1.0 / 32,
       .after = "renorm_max_d"});
  }
};

/// Losses against the labels of a data set.
using LabelLoss = std::variant<CrossEntropyLoss, DiceLoss, FocalLoss, OhemCrossEntropyLoss>;

/// One of the losses of a run, which it takes at every head.
struct LossOptions {
  LabelLoss loss;           // its ignore_index is not an option, and its weight is the one below
  float weight = 1;         // of the loss in the sum of all
  float aux_weight = 0.5F;  // times that: of the auxiliary head's loss

  template <typename Visitor>
  void visit_options(Visitor& v, bool aux_head) {
    v.alternatives("type", loss);
    v("weight", weight, "of this loss in the sum of all",
      {.in = limits::kPositive, .written = weight != 1, .after = "type"});
    v("aux_weight", aux_weight, "of the auxiliary head's loss in the sum",
      {.in = limits::kNotNegative, .written = aux_head});
  }
};

/// Calls `use(name, weights)` for what a loss has of class weights, `name` being the option's.
template <typename Options, typename Use>
void with_class_weights(Options& options, Use use) {
  std::visit(
      [&](auto& loss) {
        if constexpr (requires { loss.class_weight; }) use("class_weight", loss.class_weight);
        if constexpr (requires { loss.alpha; }) use("alpha", loss.alpha);
      },
      options.loss);
}

struct OptimOptions {
  Optimizer optimizer;
  std::int64_t lr_reference_batch = 0;  // 0: lr as it is; else it is for this global batch
  float head_lr_mult = 1;               // of what the architecture calls its heads
  std::vector<std::string> freeze;      // prefixes of names (ParameterGroup)
  GradientClipping clipping;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v.alternatives("type", optimizer);
    v("lr_reference_batch", lr_reference_batch,
      "lr is for this global batch, and scaled to the run's; 0: as it is",
      {.in = limits::kNotNegative, .after = "lr"});
    v("head_lr_mult", head_lr_mult, "times lr: of the model's last layers",
      {.in = limits::kNotNegative, .written = head_lr_mult != 1});
    v("freeze", freeze, "parameters that stay as they are, by the beginnings of their names",
      {.what = "names"});
    v("clip_norm", clipping.norm, "bound of the gradient's norm; 0: none",
      {.in = limits::kNotNegative, .written = clipping.norm != 0});
    v("clip_value", clipping.value, "bound of each element of the gradient; 0: none",
      {.in = limits::kNotNegative, .written = clipping.value != 0});
  }
};

/// Which running statistics go with the average of the weights.
enum class EmaStatistics : std::uint8_t {
  kCopy,     // those of the weights
  kAverage,  // device 0's, averaged as the weights are
  kPrecise,  // recomputed from training images, bn.precise_iters batches, with the average
};
constexpr auto names_of(EmaStatistics) {
  return std::to_array<Named<EmaStatistics>>({{"copy", EmaStatistics::kCopy},
                                              {"average", EmaStatistics::kAverage},
                                              {"precise", EmaStatistics::kPrecise}});
}

/// A moving average of the weights (DataParallelOptions::average_decay).
struct EmaOptions {
  double decay = 0;
  EmaStatistics statistics = EmaStatistics::kCopy;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("decay", decay, "of a moving average of the weights, evaluated beside them; 0: none",
      {.in = limits::kBelowOne, .written = decay != 0});
    v("bn", statistics,
      "the average's running statistics: copy (of the weights'), average, precise (of images)",
      {.written = statistics != EmaStatistics::kCopy});
  }
};

/// How validation and predictions look at images.
struct EvalConfig {
  std::optional<Size> window;  // none: in one piece
  double overlap = 0.5;
  /// None: kCrop, or kGaussian where an image's own statistics normalise it.
  std::optional<Blend> blend;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("window", window,
      "whole images in windows of [height, width] that overlap, rounded down to what the network "
      "divides by; default: in one piece",
      {.written = window.has_value()});
    v("overlap", overlap, "least share of a window that the next one has, too",
      {.in = {.lo = 0, .hi = 0.95}, .written = window.has_value()});
    v("blend", blend,
      "where windows overlap: crop (the nearest window's answer: of norms by running statistics "
      "the one of a single piece), gaussian, flat; default: crop, gaussian for norms by image",
      {.written = blend.has_value()});
  }
};

/// What the names in a configuration stand for.
struct Tables {
  ModelTable models = builtin_models();
  LayoutTable layouts = builtin_layouts();
};

/// What comes with the library.
const Tables& builtin_tables();

struct Config {
  RunOptions run;
  DataOptions data;
  BatchOptions batch;
  MemoryOptions memory;
  ModelOptions model;
  BatchNormConfig bn;
  EvalConfig eval;
  /// At least one; in a file a section, or a list of them.
  std::vector<LossOptions> losses{LossOptions{}};
  OptimOptions optim;
  ScheduleOptions schedule;
  EmaOptions ema;
  /// Where model.arch is looked up, and data.layout was. Outlives the configuration.
  const Tables* tables = &builtin_tables();

  /// The model of `model.arch`. Throws ConfigError when there is none.
  Architecture architecture() const { return find_architecture(tables->models, model); }
  /// Of images, for that model: they are padded to multiples of it.
  int size_divisor() const { return static_cast<int>(architecture().size_divisor); }
  /// Empty where head_lr_mult is 1. Throws ConfigError when it is not and the architecture has no
  /// heads.
  std::vector<ParameterGroup> parameter_groups() const;
  /// optim.lr, scaled by global batch / lr_reference_batch where that is given (Goyal et al. 2017,
  /// the linear scaling rule).
  double base_learning_rate(int devices) const;
  /// Samples of a global batch on `devices` devices.
  std::int64_t global_batch(int devices) const;
  /// Of a batch, with statistics of their own.
  int micro_batches() const {
    return bn.accumulated == MicroBatches::kTogether ? 1 : batch.accumulate;
  }
  /// Of its largest micro-batch.
  std::int64_t micro_batch(int devices) const {
    return (global_batch(devices) + micro_batches() - 1) / micro_batches();
  }
  /// Images that share BatchNorm statistics in training on `devices` devices: the most of any
  /// device, group or slice.
  std::int64_t images_together(int devices) const;
  /// The windows of an evaluation by `stats`.
  WindowOptions windows(EvalStats stats) const;
  /// Iterations of the run, given an epoch's. Throws ConfigError where they are too many.
  std::int64_t max_iters(std::int64_t batches_per_epoch) const;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v.section("run", run);
    v.section("data", data);
    v.section("batch", batch);
    v.section("memory", memory);
    v.section("model", model);
    v.section("bn", bn);
    v.section("eval", eval);
    v.sections("loss", losses, model.aux_head);
    v.section("optim", optim);
    v.section("schedule", schedule);
    v.section("ema", ema);
  }
};

/// A mode as it is called today: "ghost" for "virtual", which runs were once written with.
std::string current_mode_name(const std::string& name);

/// Reads and checks `path`, with `-s key=value` overrides (value in TOML syntax; a bare word is a
/// string) applied. Reports all errors at once, each as "file:line:column: error: ..." with the
/// line and a "did you mean". An override of one key of an exclusive pair (max_iters and epochs,
/// global and per_device) takes the other one's place. A relative data.root or
/// model.backbone_weights is looked for in the current directory, then beside `path`. Throws
/// ConfigError. `warnings` (may be null) receives what is allowed but suspicious. `tables` outlive
/// the configuration.
Config load_config(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                   std::vector<std::string>* warnings = nullptr,
                   const Tables& tables = builtin_tables());

/// A key of a resolved configuration: what it is, and who says so.
struct ConfigValue {
  std::string key;     // "bn.mode"
  std::string value;   // in TOML
  std::string doc;     // one line; may be empty
  std::string origin;  // "camvid.toml:12:8", "-s bn.mode=sync"; empty: a default, or not known
  bool counts = true;  // it can change the trained weights or the final metrics
};

/// The keys of `to_toml`, in its order, without origins; with `all` every key that has a value,
/// also those that are not written because they say nothing beside the others.
std::vector<ConfigValue> config_values(const Config& config, bool all = false);

/// Every key of a configuration to be read that has a value, with origins. Throws as load_config.
std::vector<ConfigValue> explain_config(const std::filesystem::path& path,
                                        const std::vector<std::string>& overrides,
                                        const Tables& tables = builtin_tables());

/// A key whose values differ; empty where one side does not have it.
struct ChangedValue {
  std::string key;
  std::string a = {}, b = {};
  bool counts = false;  // ConfigValue::counts, on either side
};

/// In the order of `a`, then those that only `b` has.
std::vector<ChangedValue> changed_values(const std::vector<ConfigValue>& a,
                                         const std::vector<ConfigValue>& b);

/// "not set" of an empty one.
inline std::string shown_value(const std::string& value) {
  return value.empty() ? "not set" : value;
}

/// The resolved configuration as TOML that `load_config` reads back to the same values.
std::string to_toml(const Config& config);
/// Throws ConfigError naming the key that keeps a run folder from being made: a path that no TOML
/// can hold since it is not UTF-8, a run.name that is a path.
void check_can_be_written(const Config& config);

/// 16 hex digits over every key that can change the trained weights or the final metrics: equal
/// hashes mean the same training (given the same number of devices). Names, folders and the rhythm
/// of logs do not count.
std::string config_hash(const Config& config);

/// What makes the two hashes differ: "run.tf32 (false there, true here), optim.lr (0.1 there, 0.2
/// here)", at most three of the keys; empty when nothing does.
std::string config_difference(const Config& there, const Config& here);

/// What is asked for; where that is nothing, "cuda:all" where a GPU answers, else "cpu:1".
std::string devices_or_default(const std::string& asked);

}  // namespace lockstep
