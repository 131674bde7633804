#pragma once
// Which BatchNorm a network has, as a value that a model is given and calls. Everything that may be
// chosen about the layer lives here and nowhere else.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/backend/backend.h"
#include "lockstep/core/options.h"
#include "lockstep/sync/group.h"

namespace lockstep {

class NetworkBuilder;
struct Value;

enum class BatchNormMode : std::uint8_t {
  kLocal,  // every device normalises by its own part of the batch
  kSync,   // all devices (of a sync group) normalise by their common batch
  kGhost,  // every device's part is split into slices, each normalised by itself; they share gamma
           // and beta (Ghost BatchNorm, Hoffer et al. 2017)
};
constexpr auto names_of(BatchNormMode) {
  return std::to_array<Named<BatchNormMode>>({{"local", BatchNormMode::kLocal},
                                              {"sync", BatchNormMode::kSync},
                                              {"ghost", BatchNormMode::kGhost, "virtual"}});
}
constexpr auto names_of(EpsMode) {
  return std::to_array<Named<EpsMode>>({{"add", EpsMode::kAdd}, {"clamp", EpsMode::kClamp}});
}

/// What torch.nn.BatchNorm2d takes, and over which samples the statistics go.
struct BatchNormOptions {
  BatchNormMode mode = BatchNormMode::kLocal;
  int virtual_devices = 8;
  RankPartition process_groups = {};  // kSync: which ranks share their statistics; empty: all
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  /// Weight of the new value (PyTorch's convention); nullopt: cumulative, 1 / num_batches_tracked.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("mode", mode, "local (per device), sync, ghost (slices of each device's batch)");
    v("virtual_devices", virtual_devices, "ghost: slices per device",
      {.in = {.lo = 1, .hi = 65536}});
    v("eps", eps, "", {.in = limits::kPositive});
    v("eps_mode", eps_mode, "1/sqrt(var + eps) or 1/sqrt(max(var, eps))");
    v("momentum", momentum, "weight of the new value, or \"cumulative\"",
      {.in = limits::kShare, .none = "cumulative"});
    v("affine", affine, "");
    v("track_running_stats", track_running_stats, "");
  }
};

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

  BatchNormOptions options;
  /// Normalises by the running statistics in training, too, and leaves them alone; never exchanges.
  bool frozen = false;
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

}  // namespace lockstep
