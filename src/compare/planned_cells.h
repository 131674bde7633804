#pragma once
// Which cells a comparison has, and what makes a configuration one of each. The rule: what is the
// same computation is one cell.

#include <cstdint>
#include <string>
#include <vector>

#include "compare/cell.h"
#include "config/config.h"

namespace lockstep {

struct PlannedCell {
  Cell cell;
  std::vector<std::string> overrides;  // "key=value"
  bool on_one_device = false;          // of the kind of those given
};

struct CellRequest {
  std::vector<std::string> modes;           // in today's words, each once
  std::vector<std::int64_t> images = {};    // of a curve; empty: none
  std::vector<std::string> overrides = {};  // the user's
  int devices = 1;                          // of all processes
  /// rank_layers, where a mode is sync:top:K.
  std::vector<std::string> ranking = {};
};

/// The modes in today's words. Throws ConfigError when one is named twice, or is no norm's name
/// with or without a number of layers.
std::vector<std::string> check_modes(std::vector<std::string> modes);

/// Whether one of "key=value" is of this key.
bool overrides_key(const std::vector<std::string>& overrides, const std::string& key);

/// In the order of the modes, then of the images. Throws ConfigError when images do not fit the
/// batch and the devices, or a mode, a key or the processes do not go with a curve.
std::vector<PlannedCell> plan_cells(const CellRequest& request, const Config& config);

}  // namespace lockstep
