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

void add_synchronizing(const CurveLine& sync, const CurveLine& local, Curve& curve) {
  for (const CurvePoint& point : local.points) {
    const std::size_t cell = sync.points.front().cell;
    if (point.cell != cell)
      curve.synchronizing.push_back({local.mode, point.images, cell, point.cell, 0});
  }
}

void add_steps(const CurveLine& line, Curve& curve) {
  for (std::size_t i = 0; i + 1 < line.points.size(); ++i) {
    const CurvePoint &point = line.points[i], &next = line.points[i + 1];
    // The step to sync is what synchronizing is worth there.
    const auto is_it = [&](const CurveStep& step) {
      return step.a == next.cell && step.b == point.cell;
    };
    if (std::none_of(curve.synchronizing.begin(), curve.synchronizing.end(), is_it)) {
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

std::optional<Curve> curve_of(std::span<const Cell> cells, std::int64_t batch) {
  if (std::none_of(cells.begin(), cells.end(), [](const Cell& c) { return c.images > 0; })) {
    return std::nullopt;
  }
  Curve curve{.batch = batch,
              .images = {},
              .lines = lines_of(cells),
              .synchronizing = {},
              .more_images = {}};
  CurveLine* const local = find_line(curve.lines, BatchNormMode::kLocal);
  const CurveLine* const sync = find_line(curve.lines, BatchNormMode::kSync);
  if (local != nullptr && sync != nullptr) {
    // One run speaks for both: on one device with the whole batch they compute the same.
    if (!local->at(batch)) local->points.push_back({batch, sync->points.front().cell});
    add_synchronizing(*sync, *local, curve);
  }
  curve.images = images_of(curve.lines);
  for (const CurveLine& line : curve.lines) add_steps(line, curve);
  return curve;
}

}  // namespace lockstep
