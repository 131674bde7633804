#pragma once
// A drawing in SVG: coordinates in units of about a pixel, colours and lines by the CSS classes of
// style.h, so that one drawing serves light and dark pages.

#include <string>
#include <string_view>

#include "report/page/markup.h"

namespace lockstep {

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  /// `label`: what a screen reader says in place of the drawing.
  Svg(double width, double height, std::string label);

  double width() const { return width_; }
  double height() const { return height_; }

  // `classes` and `title` (shown under the pointer; empty: none) are plain text.
  void line(double x1, double y1, double x2, double y2, std::string_view classes,
            std::string_view title = "");
  void rectangle(double x, double y, double width, double height, std::string_view classes,
                 std::string_view title = "");
  void text(double x, double y, std::string_view text, std::string_view classes = "",
            Anchor anchor = Anchor::kStart);
  /// `d`: the path's commands.
  void path(std::string_view d, std::string_view classes, std::string_view title = "");
  /// A mark around (x, y): a circle (0) or one of five other shapes, by `shape` modulo 6.
  void mark(double x, double y, double radius, int shape, std::string_view classes,
            std::string_view title = "");

  /// As part of a page that has style_sheet().
  Markup in_page() const;
  /// As a file of its own, with its style.
  std::string file() const;

 private:
  void element(std::string_view name, const std::string& attributes, std::string_view classes,
               std::string_view title);
  std::string document(std::string_view attributes, std::string_view style) const;

  double width_, height_;
  std::string label_;
  std::string body_;
};

/// Commands of a path through points; `jump` begins a new piece.
class PathBuilder {
 public:
  void to(double x, double y, bool jump);
  const std::string& d() const { return d_; }

 private:
  std::string d_;
};

/// About how wide the text is at the charts' 12 units, in the widest of their fonts.
double text_width(std::string_view text);
/// `text`, with as much of its middle left out as makes it fit into `width`.
std::string shortened(std::string_view text, double width);

}  // namespace lockstep
