#pragma once
// The name of one of cuDNN's engines, as the file of choices (backend/conv/autotuner.h) has it.

#include <cstddef>
#include <optional>
#include <string>

#include "kernels/cudnn/cudnn_graph.h"

namespace lockstep::gpu {

/// One of find_engines's list.
struct EngineChoice {
  WeightOrder order = WeightOrder::kOutInTaps;
  bool fallback = false;
  std::size_t index = 0;

  friend bool operator==(const EngineChoice&, const EngineChoice&) = default;
};

/// "out_taps_in heuristic 3", "out_in_taps fallback 0".
std::string to_string(const EngineChoice& choice);
/// Nothing for a text of another form.
std::optional<EngineChoice> parse_engine(const std::string& text);

}  // namespace lockstep::gpu
