#include "compare/curve.h"

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

CurveLine* find_line(std::vector<CurveLine>& lines, const char* mode, const std::string& by = {}) {
  const std::string name = Cell{mode, 0, by}.line();
  const auto found = std::ranges::find(lines, name, &CurveLine::mode);
  return found == lines.end() ? nullptr : &*found;
}

/// The mode of the line, without what it is evaluated by.
bool is_of_some_layers(const CurveLine& line) { return sync_top_of(mode_of_label(line.mode)) > 0; }

std::vector<CurveLine> lines_of(std::span<const Cell> cells) {
  std::vector<CurveLine> lines;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (lines.empty() || lines.back().mode != cells[i].line()) {
      lines.push_back({cells[i].line(), cells[i].by, cells[i].images == 0, {}});
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
void share_whole_batch(Curve& curve, const std::string& by) {
  CurveLine* const local = find_line(curve.lines, kLocalMode, by);
  const CurveLine* const sync = find_line(curve.lines, kSyncMode, by);
  std::optional<std::size_t> whole;
  if (local != nullptr) whole = local->at(curve.batch);
  if (sync != nullptr) whole = sync->at(curve.batch);
  for (CurveLine& line : curve.lines) {
    if (line.by != by || (&line != local && !is_of_some_layers(line))) continue;
    if (whole && !line.at(curve.batch)) line.points.push_back({curve.batch, *whole});
  }
}

void add_evaluating(Curve& curve, const CurveLine& line) {
  for (const char* by : {"own", "running"}) {
    const auto other = std::ranges::find_if(curve.lines, [&](const CurveLine& each) {
      return each.mode == Cell{line.mode, 0, by}.line();
    });
    if (other == curve.lines.end()) continue;
    const bool own = other->by == "own";
    add_difference(line.mode, own ? *other : line, own ? line : *other, curve.evaluating);
  }
}

/// REQUIRES: lines do not share the whole batch yet: what its evaluations differ by is told once.
void add_evaluations(Curve& curve) {
  for (const CurveLine& line : curve.lines) {
    if (line.by.empty()) add_evaluating(curve, line);
  }
  const CurveLine* const own = find_line(curve.lines, kLocalMode, "own");
  const CurveLine* const sync = find_line(curve.lines, kSyncMode);
  if (own != nullptr && sync != nullptr) {
    add_difference(own->mode, *sync, *own, curve.beyond_own);
  }
}

void add_differences(Curve& curve) {
  const CurveLine* const local = find_line(curve.lines, kLocalMode);
  const CurveLine* const sync = find_line(curve.lines, kSyncMode);
  if (local != nullptr && sync != nullptr) {
    add_difference(local->mode, *sync, *local, curve.synchronizing);
  }
  for (const CurveLine& line : curve.lines) {
    const bool rival = line.flat && line.by.empty() && &line != sync;
    if (rival && sync != nullptr) add_difference(line.mode, line, *sync, curve.rivals);
    if (!line.by.empty() || !is_of_some_layers(line)) continue;
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
    if (std::ranges::none_of(between, is_in)) {
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
  return {&curve.synchronizing, &curve.evaluating,  &curve.beyond_own,
          &curve.rivals,        &curve.some_layers, &curve.other_layers};
}

std::optional<Curve> curve_of(std::span<const Cell> cells, std::int64_t batch) {
  if (std::ranges::none_of(cells, [](const Cell& c) { return c.images > 0; })) {
    return std::nullopt;
  }
  Curve curve{.batch = batch,
              .images = {},
              .lines = lines_of(cells),
              .synchronizing = {},
              .some_layers = {},
              .other_layers = {},
              .evaluating = {},
              .beyond_own = {},
              .rivals = {},
              .more_images = {}};
  add_evaluations(curve);
  for (const char* by : {"", "own", "running"}) share_whole_batch(curve, by);
  add_differences(curve);
  curve.images = images_of(curve.lines);
  for (const CurveLine& line : curve.lines) {
    if (line.by.empty()) add_steps(line, curve);
  }
  return curve;
}

}  // namespace lockstep
