#include "compare/planned_cells.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/json.h"
#include "lockstep/core/check.h"
#include "train/diagnosis/sync_layers.h"

namespace lockstep {
namespace {

bool has(const std::vector<std::string>& modes, const char* mode) {
  return std::ranges::find(modes, mode) != modes.end();
}

/// "bn.sync_layers=..." of a mode: those that it names, of mode `ghost` none, since slices stand
/// for devices of mode `local`; nothing where the configuration's hold.
std::vector<std::string> sync_layers_of(const CellRequest& request, const std::string& mode) {
  if (mode == kGhostMode) return {"bn.sync_layers=[]"};
  const int top = sync_top_of(mode);
  if (top == 0) return {};
  const auto layers = first_layers(request.ranking, top, "--modes " + mode);
  return {"bn.sync_layers=" + Json(layers).dump()};
}

/// A slice of mode `ghost` takes the place of a device: one device, as many slices as there are
/// devices, the same global batch.
PlannedCell cell_of_mode(const CellRequest& request, const Config& config,
                         const std::string& mode) {
  PlannedCell planned{{mode}, sync_layers_of(request, mode)};
  const bool some_layers = sync_top_of(mode) > 0;
  planned.overrides.push_back("bn.mode=" + (some_layers ? kSyncMode : mode));
  if (mode != kGhostMode) return planned;
  planned.on_one_device = true;
  planned.overrides.push_back(fmt::format("batch.global={}", config.global_batch(request.devices)));
  if (request.devices > 1 && !overrides_key(request.overrides, "bn.virtual_devices")) {
    planned.overrides.push_back(fmt::format("bn.virtual_devices={}", request.devices));
  }
  return planned;
}

// --- a curve ---

bool asks_for_images(const std::string& mode) {
  return statistics_of(mode) == StatisticsOf::kDevice || sync_top_of(mode) > 0;
}

void check_configuration(const CellRequest& request, const Config& config) {
  if (config.micro_batches() > 1) {
    throw ConfigError(
        fmt::format("--images-per-device is about the statistics of a whole batch, but "
                    "batch.accumulate = {} cuts it into micro-batches; use batch.accumulate = 1, "
                    "or bn.accumulated = \"exact\"",
                    config.batch.accumulate));
  }
  const bool synchronizes = std::ranges::any_of(request.modes, [](const std::string& mode) {
    return statistics_of(mode) == StatisticsOf::kDevices;
  });
  if (synchronizes && config.bn.sync_group > 0) {
    throw ConfigError(
        "--images-per-device: sync is of all images, but bn.sync_group makes groups of devices; "
        "leave it out");
  }
  for (const char* key : {"bn.virtual_devices", "bn.renorm_slices"}) {
    if (!overrides_key(request.overrides, key)) continue;
    throw ConfigError(
        fmt::format("--images-per-device says how many slices there are; leave -s {} out", key));
  }
}

void check_modes_of_curve(const CellRequest& request) {
  if (has(request.modes, kGhostMode)) {
    throw ConfigError(
        "with --images-per-device mode local has slices of a device, which is what ghost is; leave "
        "ghost out of --modes");
  }
  if (std::ranges::none_of(request.modes, asks_for_images)) {
    throw ConfigError(
        fmt::format("--images-per-device: {} {} the same with any number; add local or renorm to "
                    "--modes",
                    fmt::join(request.modes, ", "), request.modes.size() == 1 ? "is" : "are"));
  }
}

void check_images(const CellRequest& request, std::int64_t batch) {
  if (batch % request.devices != 0) {
    throw ConfigError(fmt::format(
        "--images-per-device needs as many images on every device, but a step has {} images on {} "
        "devices; choose another batch.global",
        batch, request.devices));
  }
  const std::int64_t own = batch / request.devices;
  std::vector<std::int64_t> possible;
  for (std::int64_t n = 1; n <= own; ++n) {
    if (own % n == 0) possible.push_back(n);
  }
  for (const std::int64_t images : request.images) {
    if (images > 0 && own % images == 0) continue;
    throw ConfigError(fmt::format(
        "--images-per-device {}: a device has {} images of a step, which cannot be cut into slices "
        "of {}; possible are {}{}",
        images, own, images, fmt::join(possible, ", "),
        request.devices > 1 ? ", and more on fewer devices (-d)" : ""));
  }
  for (auto at = request.images.begin(); at != request.images.end(); ++at) {
    if (std::find(request.images.begin(), at, *at) == at) continue;
    throw ConfigError(fmt::format("--images-per-device names {} twice", *at));
  }
}

/// Slices of a device in the places of devices.
PlannedCell sliced_cell(const CellRequest& request, const std::string& mode, std::int64_t images,
                        std::int64_t slices) {
  PlannedCell planned{{mode, images}, {}};
  if (mode == kRenormMode) {
    planned.overrides = {"bn.mode=" + mode, fmt::format("bn.renorm_slices={}", slices)};
    return planned;
  }
  planned.overrides = sync_layers_of(request, sync_top_of(mode) > 0 ? mode : kGhostMode);
  planned.overrides.push_back(fmt::format("bn.mode={}", kGhostMode));
  planned.overrides.push_back(fmt::format("bn.virtual_devices={}", slices));
  return planned;
}

/// Whether the whole batch on one device is another mode's cell, which speaks for it: sync's, or
/// without that local's (Curve).
bool is_anothers(const CellRequest& request, const std::string& mode) {
  const bool sync = has(request.modes, kSyncMode);
  if (mode == kLocalMode) return sync;
  return sync_top_of(mode) > 0 && (sync || has(request.modes, kLocalMode));
}

std::vector<PlannedCell> cells_of_curve(const CellRequest& request, const Config& config) {
  const std::int64_t batch = config.global_batch(request.devices);
  check_configuration(request, config);
  check_modes_of_curve(request);
  check_images(request, batch);
  std::vector<std::int64_t> images = request.images;
  std::ranges::sort(images);
  std::vector<PlannedCell> cells;
  for (const std::string& mode : request.modes) {
    if (!asks_for_images(mode)) {
      cells.push_back(cell_of_mode(request, config, mode));
      continue;
    }
    for (const std::int64_t n : images) {
      if (n == batch && is_anothers(request, mode)) continue;
      cells.push_back(sliced_cell(request, mode, n, batch / request.devices / n));
    }
  }
  return cells;
}

}  // namespace

std::vector<std::string> check_modes(std::vector<std::string> modes) {
  for (auto mode = modes.begin(); mode != modes.end(); ++mode) {
    *mode = current_mode_name(*mode);
    if (*mode == "auto") {
      throw ConfigError("--modes: auto stands alone: a diagnosis names the modes");
    }
    if (std::find(modes.begin(), mode, *mode) != mode) {
      throw ConfigError("--modes names " + *mode + " twice");
    }
    if (mode->find(":top:") == std::string::npos || sync_top_of(*mode) > 0) continue;
    throw ConfigError(fmt::format(
        "--modes {}: expected sync:top:K, synchronized BatchNorm at K layers, with K from 1 to the "
        "number of layers{}",
        *mode,
        mode->starts_with("sync:") ? "" : "; only sync has layers that synchronize and others"));
  }
  return modes;
}

bool overrides_key(const std::vector<std::string>& overrides, const std::string& key) {
  return std::ranges::any_of(overrides,
                             [&](const std::string& text) { return text.starts_with(key + "="); });
}

std::vector<PlannedCell> plan_cells(const CellRequest& request, const Config& config) {
  if (!request.images.empty()) return cells_of_curve(request, config);
  std::vector<PlannedCell> cells;
  for (const std::string& mode : request.modes) {
    cells.push_back(cell_of_mode(request, config, mode));
  }
  return cells;
}

}  // namespace lockstep
