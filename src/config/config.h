#pragma once
// The configuration file (TOML), resolved. Each module owns the struct of its section; this file
// gathers them and knows how to read, check and write them. Unknown keys are errors with file, line
// and a suggestion.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/schedule.h"

namespace lockstep {

/// What of BatchNorm's statistics every log step writes to events.jsonl.
enum class BatchNormLog : std::uint8_t {
  kOff,      // nothing is read
  kLayers,   // per layer, how far the devices' statistics lie apart
  kDevices,  // and per layer and device, in a few numbers; and what tells whether replicas are
             // equal
  kFull,     // and all channels
};

/// Of the longest run: a training keeps its losses and times in memory.
inline constexpr std::int64_t kMostSteps = 100'000'000;

struct RunOptions {
  std::string name;  // default: the configuration file's stem
  std::filesystem::path work_dir = "runs";
  std::uint64_t seed = 0;
  std::optional<std::int64_t> max_iters;  // exactly one of max_iters and epochs; neither: 20 epochs
  std::optional<std::int64_t> epochs;
  std::int64_t val_every = 0;         // iterations; 0: at the end only
  std::int64_t checkpoint_every = 0;  // iterations; 0: at the end only
  int keep = 3;                       // iter_N checkpoints kept
  std::int64_t log_every = 50;
  bool rank_logs = false;  // a log of its own for every rank
  BatchNormLog log_bn = BatchNormLog::kLayers;
  // Of activations and their gradients: or, on GPUs, kBFloat16 or kFloat16.
  DType precision = DType::kFloat32;
  double loss_scale = 65536;  // fp16: the first one, a power of two
  bool tf32 = false;          // fp32 convolutions on GPUs may use TF32 tensor cores
  std::string transport = "auto";
  bool cuda_graph = false;
  std::string gradient_exchange = "auto";
  bool placement_invariant = false;  // results that do not depend on the devices, or an error
  double stall_timeout = 60;         // seconds
  // At the end also evaluate under the other eval_stats, where devices' statistics differ.
  bool eval_all_stats = false;
  bool tensorboard = false;
  std::filesystem::path metrics_file;  // for Prometheus; empty: none
};

struct BatchOptions {
  std::optional<std::int64_t> global;  // exactly one of the two; neither: global = 8
  std::optional<std::int64_t> per_device;
  bool drop_last = true;
  int accumulate = 1;  // micro-batches per step
};

/// Which statistics an evaluation uses when the devices' running statistics differ.
enum class EvalStats : std::uint8_t {
  kDevice0,  // device 0's, as DataParallel keeps them
  kMean,     // mean over devices of running_mean and of running_var
  kPooled,   // as kMean, plus the variance of the devices' means
  kPrecise,  // recomputed from training images with the final weights
};

/// The norm layer of the network, and what its statistics are taken for.
struct BatchNormConfig : BatchNormOptions {
  int sync_group = 0;  // kSync: consecutive devices that share their statistics; 0: all
  EvalStats eval_stats = EvalStats::kDevice0;
  std::int64_t precise_iters = 50;  // kPrecise: training batches behind the statistics

  /// Whether all devices have the same running statistics, however many they are.
  bool shares_statistics() const { return mode == BatchNormMode::kSync && sync_group == 0; }
};

struct LossOptions {
  std::string type = "cross_entropy";
  std::vector<float> class_weight;  // empty: all 1
  float aux_weight = 0.5F;          // of the auxiliary head's loss; the main one's is 1
};

enum class OptimizerType : std::uint8_t { kSgd, kAdamW };

/// Numbers that are not given are those of optim/optimizer.h.
struct OptimOptions {
  OptimizerType type = OptimizerType::kSgd;
  float lr = Sgd{}.lr;
  float momentum = Sgd{}.momentum;                      // kSgd
  double beta1 = AdamW{}.beta1, beta2 = AdamW{}.beta2;  // kAdamW
  float eps = AdamW{}.eps;                              // kAdamW
  float weight_decay = Sgd{}.weight_decay;
  float norm_weight_decay = Sgd{}.norm_weight_decay;
  std::int64_t lr_reference_batch = 0;  // 0: lr as it is; else it is for this global batch
  float head_lr_mult = 1;               // of what the architecture calls its heads

  Optimizer optimizer() const;
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
  ModelOptions model;
  BatchNormConfig bn;
  LossOptions loss;
  OptimOptions optim;
  ScheduleOptions schedule;
  /// Where model.arch is looked up, and data.layout was. Outlives the configuration.
  const Tables* tables = &builtin_tables();

  /// The model of `model.arch`. Throws ConfigError when there is none.
  Architecture architecture() const { return find_architecture(tables->models, model); }
  /// Empty where head_lr_mult is 1. Throws ConfigError when it is not and the architecture has no
  /// heads.
  std::vector<ParameterGroup> parameter_groups() const;
  /// optim.lr, scaled by global batch / lr_reference_batch where that is given (Goyal et al. 2017,
  /// the linear scaling rule).
  double base_learning_rate(int devices) const;
  /// Samples of a global batch on `devices` devices.
  std::int64_t global_batch(int devices) const;
  /// Of its largest micro-batch.
  std::int64_t micro_batch(int devices) const {
    return (global_batch(devices) + batch.accumulate - 1) / batch.accumulate;
  }
  /// Iterations of the run, given an epoch's. Throws ConfigError where they are too many.
  std::int64_t max_iters(std::int64_t batches_per_epoch) const;
};

const char* to_string(BatchNormMode mode);
/// A mode as it is called today: "ghost" for "virtual", which runs were once written with.
std::string current_mode_name(const std::string& name);
const char* to_string(EvalStats stats);

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

/// Every key that has a value, in the order of `to_toml`, without origins.
std::vector<ConfigValue> config_values(const Config& config);

/// The same of a configuration to be read, with origins. Throws as load_config.
std::vector<ConfigValue> explain_config(const std::filesystem::path& path,
                                        const std::vector<std::string>& overrides,
                                        const Tables& tables = builtin_tables());

/// The resolved configuration as TOML that `load_config` reads back to the same values.
std::string to_toml(const Config& config);
/// Throws ConfigError naming the key whose value no TOML can hold: a path that is not UTF-8.
void check_can_be_written(const Config& config);

/// 16 hex digits over every key that can change the trained weights or the final metrics: equal
/// hashes mean the same training (given the same number of devices). Names, folders and the rhythm
/// of logs do not count.
std::string config_hash(const Config& config);

/// "cuda:all" where a GPU answers, else "cpu:1".
std::string default_devices();

}  // namespace lockstep
