#pragma once
// What is compared: a mode, on a curve how many images share statistics in it, and what its weights
// are evaluated by.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/nn/norm_layer.h"
#include "run/summary.h"

namespace lockstep {

/// Modes that have a part of their own in a comparison.
inline constexpr const char* kLocalMode = to_string(BatchNormMode::kLocal);
inline constexpr const char* kSyncMode = to_string(BatchNormMode::kSync);
inline constexpr const char* kGhostMode = to_string(BatchNormMode::kGhost);
inline constexpr const char* kRenormMode = to_string(BatchNormMode::kRenorm);

/// "sync:top:3": synchronized at the three layers that a diagnosis ranks first, local at others.
std::string sync_top_mode(int top);
/// 3 of it; 0 where the text is no such mode.
int sync_top_of(std::string_view mode);
/// Nothing where the text is no mode.
std::optional<StatisticsOf> statistics_of(std::string_view mode);

struct Cell {
  std::string mode;  // a norm's name, or sync_top_mode
  /// That share statistics, as if on a device of their own; 0: of no curve, or the mode does not
  /// ask how many there are.
  std::int64_t images = 0;
  /// "own" or "running", where its weights are evaluated by other statistics than their
  /// configuration says; else empty.
  std::string by = {};

  /// "sync"; "sync by own".
  std::string line() const;
  /// "sync"; "local(2)" of two images; "local(2) by own".
  std::string label() const;
  /// What the folders of its runs begin with: "sync"; "local-n2"; "sync-top3".
  std::string folder() const;
};

/// Whether they are of a curve: whether one of them says how many images share statistics.
bool are_of_curve(std::span<const TrainSummary> runs);

/// Returns the cell of a run. On a curve slices of a device stand for devices: they are `local`, as
/// runs on devices are.
Cell cell_of(const TrainSummary& run, bool curve);

/// The mode of a label, without a number of images and an evaluation.
std::string_view mode_of_label(std::string_view label);
/// What of a label a curve has a line of: "local by own" of "local(2) by own".
std::string line_of_label(std::string_view label);

/// Cell::folder of a label, for names of files.
std::string folder_of_label(std::string_view label);

/// By modes in the order of norms, fewer synchronized layers first, then by images.
bool comes_before(const Cell& a, const Cell& b);

}  // namespace lockstep
