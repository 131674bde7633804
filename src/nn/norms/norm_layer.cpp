#include "lockstep/nn/norm_layer.h"

#include <fnmatch.h>

#include <algorithm>

#include "core/words.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/network.h"

namespace lockstep {
namespace {

// From `first` to `last`, between `begin` and `end`; `first` before, `last` behind.
double ramp(std::int64_t at, std::int64_t begin, std::int64_t end, double first, double last) {
  if (at >= end) return last;
  const double share =
      static_cast<double>(std::max(at, begin) - begin) / static_cast<double>(end - begin);
  return first + (last - first) * share;
}

BatchNormOptions with_mode(BatchNormOptions options, BatchNormMode mode) {
  options.mode = mode;
  return options;
}

/// What a norm does, without its name.
std::string work_of(const BatchNormOptions& norm, int devices, int group) {
  const bool some = !norm.sync_layers.empty();
  switch (norm.mode) {
    case BatchNormMode::kLocal:
      return "every device normalises its own part of the batch";
    case BatchNormMode::kSync:
      return concat("groups of ", group, " of ", devices, " devices normalise their common batch",
                    some ? " at " + joined(norm.sync_layers) + "; other layers are local" : "");
    case BatchNormMode::kGhost:
      return concat("every device's part is cut into ", norm.virtual_devices, " slices",
                    some ? "; synchronized: " + joined(norm.sync_layers) : "");
    case BatchNormMode::kGroup:
      return concat("every image by itself, in ", norm.groups, " groups of channels");
    case BatchNormMode::kInstance:
      return "every image and channel by itself";
    case BatchNormMode::kLayer:
      return "every image by itself, all channels together";
    case BatchNormMode::kRenorm:
      return concat(
          norm.renorm_slices == 1 ? "local"
                                  : concat(norm.renorm_slices, " slices of every device's part"),
          ", corrected by at most r = ", norm.renorm_max_r, " and d = ", norm.renorm_max_d);
    case BatchNormMode::kFrozen:
      break;
  }
  return "running statistics as they were loaded";
}

}  // namespace

StatisticsOf statistics_of(BatchNormMode mode) {
  switch (mode) {
    case BatchNormMode::kLocal:
    case BatchNormMode::kRenorm:
      return StatisticsOf::kDevice;
    case BatchNormMode::kSync:
      return StatisticsOf::kDevices;
    case BatchNormMode::kGhost:
      return StatisticsOf::kSlice;
    case BatchNormMode::kGroup:
    case BatchNormMode::kInstance:
    case BatchNormMode::kLayer:
      return StatisticsOf::kImage;
    case BatchNormMode::kFrozen:
      break;
  }
  return StatisticsOf::kNobody;
}

std::string BatchNormOptions::sentence(int devices, int group) const {
  return concat(to_string(mode), ": ", work_of(*this, devices, group));
}

RenormLimits::RenormLimits(const BatchNormOptions& options, std::int64_t batches)
    : max_r(ramp(batches, options.renorm_warmup, 8 * options.renorm_warmup, 1,
                 static_cast<double>(options.renorm_max_r))),
      max_d(ramp(batches, options.renorm_warmup, 5 * options.renorm_warmup, 0,
                 static_cast<double>(options.renorm_max_d))) {}

std::int64_t NormLayer::channel_groups(std::int64_t channels, const std::string& name) const {
  if (options.by_image || options.mode == BatchNormMode::kInstance) return channels;
  if (options.mode == BatchNormMode::kLayer) return 1;
  if (options.mode != BatchNormMode::kGroup) return 0;
  if (options.groups >= 1 && channels % options.groups == 0) return options.groups;
  throw ConfigError(concat(name, ": ", channels, " channels cannot be cut into ", options.groups,
                           " equal groups; choose a number of groups that divides the ",
                           "channels of every layer"));
}

NormLayer NormLayer::named(const std::string& name) const {
  const auto& patterns = options.sync_layers;
  NormLayer layer = *this;
  if (patterns.empty() || !options.synchronizes()) return layer;
  const bool chosen =
      std::any_of(patterns.begin(), patterns.end(),
                  [&](const std::string& pattern) { return matches_pattern(name, pattern); });
  const bool sliced = options.mode == BatchNormMode::kGhost;
  if (chosen) layer.options.mode = BatchNormMode::kSync;
  if (!chosen && !sliced) layer.options.mode = BatchNormMode::kLocal;
  return layer;
}

bool matches_pattern(const std::string& name, const std::string& pattern) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

Value* NormLayer::operator()(NetworkBuilder& net, Value* x, const std::string& name,
                             const NormCall& call) const {
  return net.batch_norm(x, name, *this, call);
}

BatchNorm1d::BatchNorm1d(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  most_rank = 3;
}

BatchNorm2d::BatchNorm2d(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  least_rank = most_rank = 4;
}

BatchNorm3d::BatchNorm3d(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  least_rank = most_rank = 5;
}

SyncBatchNorm::SyncBatchNorm(const BatchNormOptions& batch_norm,
                             const RankPartition& process_groups)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kSync)) {
  if (!process_groups.empty()) options.process_groups = process_groups;
}

GhostBatchNorm::GhostBatchNorm(int virtual_devices, const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kGhost)) {
  options.virtual_devices = virtual_devices;
}

FrozenBatchNorm::FrozenBatchNorm(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kFrozen)) {}

BatchRenorm::BatchRenorm(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kRenorm)) {}

GroupNorm::GroupNorm(int num_groups, const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kGroup)) {
  options.groups = num_groups;
}

InstanceNorm::InstanceNorm(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kInstance)) {}

LayerNorm::LayerNorm(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLayer)) {}

}  // namespace lockstep
