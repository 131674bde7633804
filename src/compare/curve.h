#pragma once
// The curve: scores over the images that share statistics, of one global batch.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compare/cell.h"

namespace lockstep {

struct CurvePoint {
  std::int64_t images = 0;
  std::size_t cell = 0;  // of Comparison::rows
};

struct CurveLine {
  std::string mode;                // Cell::line
  std::string by;                  // Cell::by
  bool flat = false;               // its only point stands for any number of images
  std::vector<CurvePoint> points;  // ascending

  /// The cell with so many images; none where it is missing.
  std::optional<std::size_t> at(std::int64_t images) const;
};

/// Cell `a` minus cell `b`: what to do something is worth to a mode. The rule: those of one list
/// and mode are tested one after the other, from the fewest images on.
struct CurveStep {
  std::string mode;
  std::int64_t images = 0;  // of b; 0: any number
  std::size_t a = 0, b = 0;
  std::size_t pair = 0;  // of Comparison::pairs
};

struct Curve {
  std::int64_t batch = 0;            // images per step: with so many on a device, local is sync
  std::vector<std::int64_t> images;  // per device, of all lines; ascending
  std::vector<CurveLine> lines;
  std::vector<CurveStep> synchronizing;  // sync minus local
  std::vector<CurveStep> some_layers;    // sync:top:K minus local
  std::vector<CurveStep> other_layers;   // sync minus sync:top:K
  std::vector<CurveStep> evaluating;  // the same weights, by own statistics minus by running ones
  std::vector<CurveStep> beyond_own;  // sync minus local by own
  std::vector<CurveStep> rivals;      // norms that no number of images changes, minus sync
  /// Of each mode, the next number of images minus this one; what the others have is not repeated.
  std::vector<CurveStep> more_images;
};

/// Lists of differences between modes, in the order in which they are told.
std::vector<const std::vector<CurveStep>*> steps_between_modes(const Curve& curve);

/// None where no cell says how many images share its statistics.
std::optional<Curve> curve_of(std::span<const Cell> cells, std::int64_t batch);

}  // namespace lockstep
