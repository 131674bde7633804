#include "compare/curve.h"

#include <algorithm>
#include <set>

#include "lockstep/nn/norm_layer.h"

namespace lockstep {
namespace {

CurveLine* find_line(std::vector<CurveLine>& lines, BatchNormMode mode) {
  const auto found = std::find_if(lines.begin(), lines.end(), [&](const CurveLine& line) {
    return line.mode == to_string(mode);
  });
  return found == lines.end() ? nullptr : &*found;
}

std::vector<CurveLine> lines_of(std::span<const Cell> cells) {
  std::vector<CurveLine> lines;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (lines.empty() || lines.back().mode != cells[i].mode) {
      lines.push_back({cells[i].mode, cells[i].images == 0, {}});
    }
    lines.back().points.push_back({cells[i].images, i});
  }
  return lines;
}

std::vector<std::int64_t> images_of(const std::vector<CurveLine>& lines) {
  std::set<std::int64_t> images;
  for (const CurveLine& line : lines) {
    for (const CurvePoint& point : line.points) {
      if (!line.flat) images.insert(point.images);
    }
  }
  return {images.begin(), images.end()};
}

/// `more` minus `fewer`, which synchronizes fewer layers or none; `mode`: that they are tested as.
void add_difference(const std::string& mode, const CurveLine& more, const CurveLine& fewer,
                    std::vector<CurveStep>& steps) {
  for (const CurvePoint& point : fewer.points) {
    const std::optional<std::size_t> cell = more.at(point.images);
    if (cell && point.cell != *cell) steps.push_back({mode, point.images, *cell, point.cell, 0});
  }
}

/// With the whole batch on a device all that synchronize at all compute the same: one run speaks
/// for them.
void share_whole_batch(Curve& curve) {
  CurveLine* const local = find_line(curve.lines, BatchNormMode::kLocal);
  const CurveLine* const sync = find_line(curve.lines, BatchNormMode::kSync);
  std::optional<std::size_t> whole;
  if (local != nullptr) whole = local->at(curve.batch);
  if (sync != nullptr) whole = sync->at(curve.batch);
  for (CurveLine& line : curve.lines) {
    if (&line != local && sync_top_of(line.mode) == 0) continue;
    if (whole && !line.at(curve.batch)) line.points.push_back({curve.batch, *whole});
  }
}

void add_differences(Curve& curve) {
  const CurveLine* const local = find_line(curve.lines, BatchNormMode::kLocal);
  const CurveLine* const sync = find_line(curve.lines, BatchNormMode::kSync);
  if (local != nullptr && sync != nullptr) {
    add_difference(local->mode, *sync, *local, curve.synchronizing);
  }
  for (const CurveLine& line : curve.lines) {
    if (sync_top_of(line.mode) == 0) continue;
    if (local != nullptr) add_difference(line.mode, line, *local, curve.some_layers);
    if (sync != nullptr) add_difference(line.mode, *sync, line, curve.other_layers);
  }
}

void add_steps(const CurveLine& line, Curve& curve) {
  for (std::size_t i = 0; i + 1 < line.points.size(); ++i) {
    const CurvePoint &point = line.points[i], &next = line.points[i + 1];
    // The step to sync is what synchronizing is worth there.
    const auto is_in = [&](const std::vector<CurveStep>* steps) {
      return std::any_of(steps->begin(), steps->end(), [&](const CurveStep& step) {
        return step.a == next.cell && step.b == point.cell;
      });
    };
    const auto between = steps_between_modes(curve);
    if (std::none_of(between.begin(), between.end(), is_in)) {
      curve.more_images.push_back({line.mode, point.images, next.cell, point.cell, 0});
    }
  }
}

}  // namespace

std::optional<std::size_t> CurveLine::at(std::int64_t images) const {
  for (const CurvePoint& point : points) {
    if (flat || point.images == images) return point.cell;
  }
  return std::nullopt;
}

std::vector<const std::vector<CurveStep>*> steps_between_modes(const Curve& curve) {
  return {&curve.synchronizing, &curve.some_layers, &curve.other_layers};
}

std::optional<Curve> curve_of(std::span<const Cell> cells, std::int64_t batch) {
  if (std::none_of(cells.begin(), cells.end(), [](const Cell& c) { return c.images > 0; })) {
    return std::nullopt;
  }
  Curve curve{.batch = batch,
              .images = {},
              .lines = lines_of(cells),
              .synchronizing = {},
              .some_layers = {},
              .other_layers = {},
              .more_images = {}};
  share_whole_batch(curve);
  add_differences(curve);
  curve.images = images_of(curve.lines);
  for (const CurveLine& line : curve.lines) add_steps(line, curve);
  return curve;
}

}  // namespace lockstep
