#include "report/page/frame.h"

#include <algorithm>

#include "report/page/style.h"

namespace lockstep {
namespace {

// Labels at the ends of an axis stay within the drawing.
Anchor anchor_at(double x, double half_width, double right_end) {
  if (x + half_width > right_end) return Anchor::kEnd;
  return Anchor::kMiddle;
}

}  // namespace

void Frame::place(double width, double height, double above, double below) {
  double label = 0;
  for (const double tick : y.ticks) label = std::max(label, text_width(tick_label(tick)));
  left = label + 10;
  right = width - 12;
  top = above;
  bottom = height - below;
}

void draw_frame(Svg& svg, const Frame& frame, const std::string& title,
                const std::string& x_label) {
  svg.text(0, 13, title, "title");
  for (const double tick : frame.y.ticks) {
    const double y = frame.y_of(tick);
    svg.line(frame.left, y, frame.right, y, "grid");
    svg.text(frame.left - 7, y + 4, tick_label(tick), "", Anchor::kEnd);
  }
  svg.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis");
  for (const double tick : frame.x.ticks) {
    const double x = frame.x_of(tick);
    svg.line(x, frame.bottom, x, frame.bottom + 4, "axis");
    const std::string label = tick_label(tick);
    svg.text(x, frame.bottom + 17, label, "", anchor_at(x, text_width(label) / 2, svg.width()));
  }
  svg.text(frame.right, svg.height() - 4, x_label, "", Anchor::kEnd);
}

void draw_x_axis(Svg& svg, const Axis& axis, double left, double right, double top, double bottom,
                 const std::string& label) {
  for (const double tick : axis.ticks) {
    const double x = left + axis.at(tick) * (right - left);
    svg.line(x, top, x, bottom, "grid");
    const std::string text = tick_label(tick);
    svg.text(x, bottom + 15, text, "", anchor_at(x, text_width(text) / 2, svg.width()));
  }
  if (!label.empty()) svg.text(right, bottom + 31, label, "", Anchor::kEnd);
}

void draw_legend(Svg& svg, const std::vector<std::string>& modes, double y, LegendOf of, double x) {
  for (const std::string& mode : modes) {
    const std::string color = mode_class(mode);
    switch (of) {
      case LegendOf::kBars:
        svg.rectangle(x, y - 9, 12, 9, "bar " + color);
        x += 17;
        break;
      case LegendOf::kMarks:
        svg.mark(x + 5, y - 4, 4, mode_style(mode), "mark " + color);
        x += 15;
        break;
      case LegendOf::kCurves:
        svg.line(x, y - 4, x + 24, y - 4, "curve " + color);
        svg.mark(x + 12, y - 4, 2.4, mode_style(mode), "mark " + color);
        x += 29;
        break;
    }
    svg.text(x, y, mode);
    x += text_width(mode) + 18;
  }
}

double room_for(const std::vector<std::string>& names) {
  double widest = 0;
  for (const std::string& name : names) widest = std::max(widest, text_width(name));
  return std::min(widest, 0.42 * kChartWidth);
}

double room_below(const std::string& x_label) { return x_label.empty() ? 20 : 36; }

}  // namespace lockstep
