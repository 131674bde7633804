#include "report/page/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "report/page/style.h"

namespace lockstep {
namespace {

const char* name_of(Anchor anchor) { return anchor == Anchor::kMiddle ? "middle" : "end"; }

// Corners around (0, 0) for a radius of 1, in order: square, triangle up, diamond, triangle down,
// hourglass.
constexpr std::array<std::array<std::array<double, 2>, 4>, 5> kShapes{{
    {{{-1, -1}, {1, -1}, {1, 1}, {-1, 1}}},
    {{{0, -1.2}, {1.2, 1}, {-1.2, 1}, {0, -1.2}}},
    {{{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}}},
    {{{-1.2, -1}, {1.2, -1}, {0, 1.2}, {-1.2, -1}}},
    {{{-1.1, -1.1}, {1.1, -1.1}, {-1.1, 1.1}, {1.1, 1.1}}},
}};

std::string shape_path(double x, double y, double radius, std::size_t shape) {
  PathBuilder path;
  for (const auto& corner : kShapes[shape]) {
    path.to(x + radius * corner[0], y + radius * corner[1], false);
  }
  return path.d() + "z";
}

double character_width(std::string_view character) {
  constexpr std::string_view kNarrow = "ijl.,:;'|!", kLow = "frt()[]- /I";
  if (character.size() > 2) return character == "−" ? 10.1 : 12;
  const char c = character.front();
  if (kNarrow.find(c) != std::string_view::npos) return 4;
  if (kLow.find(c) != std::string_view::npos) return 4.8;
  if (c == 'm' || c == 'M' || c == 'W' || c == '%') return 11.7;
  if (c == 'w' || (c >= 'A' && c <= 'Z')) return 9;
  return 7.6;
}

}  // namespace

Svg::Svg(double width, double height, std::string label)
    : width_(width), height_(height), label_(std::move(label)) {}

void Svg::element(std::string_view name, const std::string& attributes, std::string_view classes,
                  std::string_view title) {
  body_ += fmt::format("<{}{}", name, attributes);
  if (!classes.empty()) body_ += fmt::format(" class=\"{}\"", classes);
  if (title.empty()) {
    body_ += "/>\n";
  } else {
    body_ += fmt::format("><title>{}</title></{}>\n", escaped(title).text, name);
  }
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view classes,
               std::string_view title) {
  element("line",
          fmt::format(" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"", coordinate(x1), coordinate(y1),
                      coordinate(x2), coordinate(y2)),
          classes, title);
}

void Svg::rectangle(double x, double y, double width, double height, std::string_view classes,
                    std::string_view title) {
  element("rect",
          fmt::format(" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", coordinate(x), coordinate(y),
                      coordinate(std::max(0.0, width)), coordinate(std::max(0.0, height))),
          classes, title);
}

void Svg::text(double x, double y, std::string_view text, std::string_view classes, Anchor anchor) {
  body_ += fmt::format("<text x=\"{}\" y=\"{}\"", coordinate(x), coordinate(y));
  if (!classes.empty()) body_ += fmt::format(" class=\"{}\"", classes);
  if (anchor != Anchor::kStart) body_ += fmt::format(" text-anchor=\"{}\"", name_of(anchor));
  body_ += ">" + escaped(text).text + "</text>\n";
}

void Svg::path(std::string_view d, std::string_view classes, std::string_view title) {
  element("path", fmt::format(" d=\"{}\"", d), classes, title);
}

void Svg::mark(double x, double y, double radius, int shape, std::string_view classes,
               std::string_view title) {
  const std::size_t kind = static_cast<std::size_t>(shape) % (kShapes.size() + 1);
  if (kind > 0) return path(shape_path(x, y, radius, kind - 1), classes, title);
  element("circle",
          fmt::format(" cx=\"{}\" cy=\"{}\" r=\"{}\"", coordinate(x), coordinate(y),
                      coordinate(radius)),
          classes, title);
}

std::string Svg::document(std::string_view attributes, std::string_view style) const {
  return fmt::format("<svg{} viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}{}</svg>\n",
                     attributes, coordinate(width_), coordinate(height_), escaped(label_).text,
                     style, body_);
}

Markup Svg::in_page() const { return {document(" class=\"chart\"", "")}; }

std::string Svg::file() const {
  const std::string attributes = fmt::format(
      " xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{}\" height=\"{}\"",
      coordinate(width_), coordinate(height_));
  return document(attributes, fmt::format("<style>{}</style>\n", chart_style()));
}

void PathBuilder::to(double x, double y, bool jump) {
  d_ += (jump || d_.empty()) ? 'M' : 'L';
  d_ += coordinate(x) + ' ' + coordinate(y);
}

double text_width(std::string_view text) {
  double width = 0;
  for (const std::string_view character : utf8_characters(text))
    width += character_width(character);
  return width;
}

std::string shortened(std::string_view text, double width) {
  if (text_width(text) <= width) return std::string(text);
  std::vector<std::string_view> rest = utf8_characters(text);
  const auto joined = [&] {
    std::string whole;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (i == (rest.size() + 1) / 2) whole += "…";
      whole += rest[i];
    }
    return whole;
  };
  while (rest.size() > 2 && text_width(joined()) > width) {
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(rest.size() / 2));
  }
  return joined();
}

}  // namespace lockstep
