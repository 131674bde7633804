#include "compare/cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "lockstep/nn/norm_layer.h"

namespace lockstep {
namespace {

std::size_t place_of(const std::string& mode) {
  const auto names = names_of(BatchNormMode());
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const auto& named) { return mode == named.name; });
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

std::string Cell::label() const { return images == 0 ? mode : fmt::format("{}({})", mode, images); }

std::string Cell::folder() const {
  return images == 0 ? mode : fmt::format("{}-n{}", mode, images);
}

bool are_of_curve(std::span<const TrainSummary> runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [](const TrainSummary& run) { return run.images_per_device > 0; });
}

Cell cell_of(const TrainSummary& run, bool curve) {
  const auto is = [&](BatchNormMode mode) { return run.bn_mode == to_string(mode); };
  const std::int64_t images = run.images_per_device;
  if (images > 0 && is(BatchNormMode::kGhost)) return {to_string(BatchNormMode::kLocal), images};
  const bool of_devices = is(BatchNormMode::kLocal) || is(BatchNormMode::kRenorm);
  if (!curve || images > 0 || !of_devices) return {run.bn_mode, images};
  return {run.bn_mode, run.global_batch / std::max(1, run.device_count)};
}

std::string_view mode_of_label(std::string_view label) { return label.substr(0, label.find('(')); }

std::string folder_of_label(std::string_view label) {
  const std::string_view mode = mode_of_label(label);
  if (mode.size() == label.size()) return std::string(label);
  return fmt::format("{}-n{}", mode, label.substr(mode.size() + 1, label.size() - mode.size() - 2));
}

bool comes_before(const Cell& a, const Cell& b) {
  return std::tuple(place_of(a.mode), a.images) < std::tuple(place_of(b.mode), b.images);
}

}  // namespace lockstep
