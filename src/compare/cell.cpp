#include "compare/cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kSyncTop = "sync:top:";

/// Of its mode, and among those that synchronize some layers; all layers come last.
std::pair<std::size_t, int> place_of(const std::string& mode) {
  const int top = sync_top_of(mode);
  const auto names = names_of(BatchNormMode());
  const auto found = std::ranges::find_if(names, [&](const auto& named) {
    return named.name == (top > 0 ? std::string_view(kSyncMode) : mode);
  });
  return {static_cast<std::size_t>(found - names.begin()),
          top > 0 ? top : std::numeric_limits<int>::max()};
}

}  // namespace

std::string sync_top_mode(int top) { return fmt::format("{}{}", kSyncTop, top); }

int sync_top_of(std::string_view mode) {
  if (!mode.starts_with(kSyncTop)) return 0;
  return top_of(std::string(mode.substr(kSyncTop.find(':') + 1))).value_or(0);
}

std::optional<StatisticsOf> statistics_of(std::string_view mode) {
  if (sync_top_of(mode) > 0) return StatisticsOf::kDevices;
  for (const Named<BatchNormMode>& named : names_of(BatchNormMode()))
    if (mode == named.name) return statistics_of(named.value);
  return std::nullopt;
}

std::string Cell::line() const { return by.empty() ? mode : fmt::format("{} by {}", mode, by); }

std::string Cell::label() const {
  return images == 0 ? line() : Cell{fmt::format("{}({})", mode, images), 0, by}.line();
}

std::string Cell::folder() const {
  const int top = sync_top_of(mode);
  const std::string name = top > 0 ? fmt::format("sync-top{}", top) : mode;
  return images == 0 ? name : fmt::format("{}-n{}", name, images);
}

bool are_of_curve(std::span<const TrainSummary> runs) {
  return std::ranges::any_of(
      runs, [](const TrainSummary& run) { return run.cell.images_per_device > 0; });
}

Cell cell_of(const TrainSummary& run, bool curve) {
  const std::int64_t images = run.cell.images_per_device;
  const bool some_layers = run.cell.sync_top > 0;
  const bool sliced = images > 0 && run.bn_mode == kGhostMode;
  const std::string mode = some_layers ? sync_top_mode(run.cell.sync_top)
                           : sliced    ? kLocalMode
                                       : run.bn_mode;
  const bool of_devices = statistics_of(run.bn_mode) == StatisticsOf::kDevice || some_layers;
  if (!curve || images > 0 || !of_devices) return {mode, images};
  return {mode, run.global_batch / std::max(1, run.device_count)};
}

std::string_view mode_of_label(std::string_view label) {
  return label.substr(0, label.find_first_of("( "));
}

std::string line_of_label(std::string_view label) {
  const std::size_t by = label.find(' ');
  const std::string_view rest = by == std::string_view::npos ? "" : label.substr(by);
  return std::string(mode_of_label(label)) + std::string(rest);
}

std::string folder_of_label(std::string_view label) {
  Cell cell{std::string(mode_of_label(label))};
  if (label.size() > cell.mode.size() && label[cell.mode.size()] == '(') {
    cell.images = std::stoll(std::string(label.substr(cell.mode.size() + 1)));
  }
  return cell.folder();
}

bool comes_before(const Cell& a, const Cell& b) {
  return std::tuple(place_of(a.mode), a.images, a.by) <
         std::tuple(place_of(b.mode), b.images, b.by);
}

}  // namespace lockstep
