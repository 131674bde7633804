#pragma once
// Which BatchNorm a network has, as a value that a model is given and calls. Everything that may be
// chosen about the layer lives here and nowhere else.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/core/options.h"
#include "lockstep/sync/group.h"

namespace lockstep {

class NetworkBuilder;
struct Value;

enum class BatchNormMode : std::uint8_t {
  kLocal,     // every device normalises its own shard
  kSync,      // all devices (of a sync group) normalise by their common batch
  kGhost,     // every shard is cut into slices, each normalised by itself; they share gamma
              // and beta (Ghost BatchNorm, Hoffer et al. 2017)
  kGroup,     // one image and a group of its channels (GroupNorm, Wu and He 2018)
  kInstance,  // one image and one channel (InstanceNorm, Ulyanov et al. 2016)
  kLayer,     // one image, all channels: GroupNorm of one group
  kFrozen,    // running statistics, in training as in evaluation
  kRenorm,    // local, corrected towards the running statistics (Ioffe 2017)
};
constexpr auto names_of(BatchNormMode) {
  return std::to_array<Named<BatchNormMode>>({{"local", BatchNormMode::kLocal},
                                              {"sync", BatchNormMode::kSync},
                                              {"ghost", BatchNormMode::kGhost, "virtual"},
                                              {"group", BatchNormMode::kGroup},
                                              {"instance", BatchNormMode::kInstance},
                                              {"layer", BatchNormMode::kLayer},
                                              {"frozen", BatchNormMode::kFrozen},
                                              {"renorm", BatchNormMode::kRenorm}});
}

/// Who shares statistics in training.
enum class StatisticsOf : std::uint8_t {
  kDevice,   // the samples of a shard
  kDevices,  // the samples of all devices, or of a sync group
  kSlice,    // the samples of a slice of a shard
  kImage,    // the values of an image: no running statistics, and evaluation is as training
  kNobody,   // running statistics are used, and nothing is measured
};
StatisticsOf statistics_of(BatchNormMode mode);

/// Which of a step's micro-batches feed the running statistics, each with statistics of its own; or
/// all of them as one batch.
enum class MicroBatches : std::uint8_t { kEvery, kFirst, kLast, kTogether };
/// Those that a configuration can choose.
constexpr auto names_of(MicroBatches) {
  return std::to_array<Named<MicroBatches>>(
      {{"micro_batch", MicroBatches::kEvery}, {"exact", MicroBatches::kTogether}});
}

constexpr auto names_of(EpsMode) {
  return std::to_array<Named<EpsMode>>({{"add", EpsMode::kAdd}, {"clamp", EpsMode::kClamp}});
}

/// What torch.nn.BatchNorm2d takes, and over which samples the statistics go.
struct BatchNormOptions {
  BatchNormMode mode = BatchNormMode::kLocal;
  int virtual_devices = 8;
  int groups = 32;                    // kGroup: of the channels
  float renorm_max_r = 3;             // kRenorm: the scale's correction is in [1 / it, it]
  float renorm_max_d = 5;             // kRenorm: the shift's is in [-it, it]
  std::int64_t renorm_warmup = 5000;  // kRenorm: batches without a correction (RenormLimits)
  int renorm_slices = 1;              // kRenorm: as virtual_devices of kGhost
  RankPartition process_groups = {};  // kSync: which ranks share their statistics; empty: all
  /// Patterns of names, as a shell's (*, ?, [a-z]), of the layers that are synchronized. kSync: the
  /// others are local; empty: there are none. kGhost: the others are in slices; empty: all are.
  std::vector<std::string> sync_layers = {};
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  /// Weight of the new value (PyTorch's convention); nullopt: cumulative, 1 / num_batches_tracked.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  /// Whether each image is normalised by its own statistics, whatever the mode, as
  /// normalize_by_image says. Running ones are then loaded and not used.
  bool by_image = false;

  /// Returns into how many slices a shard is cut, each normalised by itself.
  int slices() const {
    if (mode == BatchNormMode::kRenorm) return renorm_slices;
    return mode == BatchNormMode::kGhost ? virtual_devices : 1;
  }
  StatisticsOf statistics() const { return statistics_of(mode); }
  /// Whether it corrects what it normalised towards the running statistics.
  bool corrects() const { return mode == BatchNormMode::kRenorm; }
  /// Whether sync_layers can say which layers synchronize.
  bool takes_sync_layers() const {
    return mode == BatchNormMode::kSync || mode == BatchNormMode::kGhost;
  }
  /// Whether a model may have layers that synchronize.
  bool synchronizes() const {
    return mode == BatchNormMode::kSync || (takes_sync_layers() && !sync_layers.empty());
  }
  /// Says what it does on so many devices, of which so many are a sync group:
  /// "instance: every image and channel by itself".
  std::string sentence(int devices, int group) const;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    const BatchNormOptions defaults;
    v("mode", mode,
      "local (per device), sync, ghost (slices of each device's batch), renorm, frozen; of one "
      "image: group, instance, layer");
    v("virtual_devices", virtual_devices, "ghost: slices per device",
      {.in = {.lo = 1, .hi = 65536}});
    v("groups", groups, "group: channel groups; they divide every layer's channels",
      {.in = {.lo = 1, .hi = 65536},
       .written = mode == BatchNormMode::kGroup || groups != defaults.groups});
    v("renorm_max_r", renorm_max_r, "renorm: the most that the scale is corrected by",
      {.in = {.lo = 1}, .written = corrects() || renorm_max_r != defaults.renorm_max_r});
    v("renorm_max_d", renorm_max_d, "renorm: the most that the mean is corrected by",
      {.in = limits::kNotNegative, .written = corrects() || renorm_max_d != defaults.renorm_max_d});
    v("renorm_slices", renorm_slices,
      "renorm: slices per device, each corrected towards running statistics of its own",
      {.in = {.lo = 1, .hi = 65536}, .written = renorm_slices != defaults.renorm_slices});
    v("eps", eps, "", {.in = limits::kPositive});
    v("eps_mode", eps_mode, "1/sqrt(var + eps) or 1/sqrt(max(var, eps))");
    v("momentum", momentum, "weight of the new value, or \"cumulative\"",
      {.in = limits::kShare, .none = "cumulative"});
    v("affine", affine, "");
    v("track_running_stats", track_running_stats, "");
  }
};

/// How far Batch Renormalization corrects after so many batches: not at all for the first
/// `renorm_warmup`, then linearly more, to max_r after 8 and to max_d after 5 times as many (Ioffe
/// 2017, section 4.1, where they are 5000, 40000 and 25000).
struct RenormLimits {
  double max_r = 1, max_d = 0;

  RenormLimits() = default;
  RenormLimits(const BatchNormOptions& options, std::int64_t batches);
};

/// Whether a layer's name is one that the pattern stands for (BatchNormOptions::sync_layers).
bool matches_pattern(const std::string& name, const std::string& pattern);

/// One call of a norm layer.
struct NormCall {
  bool relu = false;          // fused: the output is max(0, normalised + residual)
  Value* residual = nullptr;  // added before the ReLU
  /// The channels that the caller expects, as torch.nn.BatchNorm2d(num_features) does; 0: those of
  /// the input.
  std::int64_t num_features = 0;
};

/// A norm layer: `norm(net, x, "stem.bn")` declares a call of it and returns its output. Layers of
/// one name share gamma, beta and running statistics.
struct NormLayer {
  NormLayer(const BatchNormOptions& batch_norm = {}) : options(batch_norm) {}

  /// Throws Error naming the layer when the input's rank, its channels or the residual do not fit.
  Value* operator()(NetworkBuilder& net, Value* x, const std::string& name,
                    const NormCall& call = {}) const;

  /// Returns into how many runs the channels of an input are cut, each normalised together within
  /// one image; 0 where several images share statistics (BatchNorm). Throws ConfigError saying both
  /// numbers when the groups do not divide the channels; `name`: of the layer.
  std::int64_t channel_groups(std::int64_t channels, const std::string& name) const;
  /// Returns the layer that has this name: itself, but a synchronized one that options.sync_layers
  /// leaves out is local, and one in slices that they name is synchronized.
  NormLayer named(const std::string& name) const;
  /// Normalises by the running statistics in training, too, and leaves them alone; never exchanges.
  bool is_frozen() const { return options.statistics() == StatisticsOf::kNobody; }

  BatchNormOptions options;
  /// Ranks of inputs that are taken: (N, C) is 2, (N, L, C) 3, (N, H, W, C) 4, (N, D, H, W, C) 5.
  int least_rank = 2, most_rank = 5;
};

/// torch.nn.BatchNorm1d: (N, C) or (N, L, C). Every device by itself, as the next two.
struct BatchNorm1d : NormLayer {
  explicit BatchNorm1d(const BatchNormOptions& batch_norm = {});
};
/// torch.nn.BatchNorm2d: (N, H, W, C).
struct BatchNorm2d : NormLayer {
  explicit BatchNorm2d(const BatchNormOptions& batch_norm = {});
};
/// torch.nn.BatchNorm3d: (N, D, H, W, C).
struct BatchNorm3d : NormLayer {
  explicit BatchNorm3d(const BatchNormOptions& batch_norm = {});
};
/// torch.nn.SyncBatchNorm: the statistics of all devices' samples, of any rank. With process groups
/// those of the ranks in one set; layers of one network may have different ones.
struct SyncBatchNorm : NormLayer {
  explicit SyncBatchNorm(const BatchNormOptions& batch_norm = {},
                         const RankPartition& process_groups = {});
};
/// Ghost BatchNorm (Hoffer et al. 2017, "Train longer, generalize better"): every device's samples
/// in `virtual_devices` slices (sizes as torch.chunk), each normalised as if it were alone on a
/// device. Slice 0 of device 0 feeds the running statistics.
struct GhostBatchNorm : NormLayer {
  explicit GhostBatchNorm(int virtual_devices, const BatchNormOptions& batch_norm = {});
};
/// The name that virtual-device implementations use for it. Not the Virtual BatchNorm of Salimans
/// et al. 2016, which normalises by a reference batch.
using VirtualBatchNorm = GhostBatchNorm;
/// Running statistics as they were loaded, in training as in evaluation; gamma and beta still
/// learn.
struct FrozenBatchNorm : NormLayer {
  explicit FrozenBatchNorm(const BatchNormOptions& batch_norm = {});
};

/// Batch Renormalization (Ioffe 2017): a device's own statistics, corrected towards the running
/// ones by options.renorm_max_r and renorm_max_d, which pass no gradient on. Running statistics are
/// BatchNorm's. Needs them: track_running_stats. With options.renorm_slices every slice of a device
/// has running statistics of its own, as if it were alone on one; slice 0's are the model's.
struct BatchRenorm : NormLayer {
  explicit BatchRenorm(const BatchNormOptions& batch_norm = {});
};

// --- one image's statistics: no running ones, the same in evaluation, never an exchange; eps,
// eps_mode and affine are what counts of the options ---

/// torch.nn.GroupNorm(num_groups, channels), of inputs of any rank. Throws ConfigError where the
/// channels are no multiple of the groups.
struct GroupNorm : NormLayer {
  explicit GroupNorm(int num_groups, const BatchNormOptions& batch_norm = {});
};
/// torch.nn.InstanceNorm1d, 2d or 3d, but for `affine`, which is true here unless the options say
/// otherwise.
struct InstanceNorm : NormLayer {
  explicit InstanceNorm(const BatchNormOptions& batch_norm = {});
};
/// torch.nn.GroupNorm(1, channels): all values of an image. gamma and beta are one per channel, not
/// one per value as those of torch.nn.LayerNorm.
struct LayerNorm : NormLayer {
  explicit LayerNorm(const BatchNormOptions& batch_norm = {});
};

}  // namespace lockstep
