#pragma once
// How the report looks: chart.css and page.css, and which of their classes a mode has.

#include <string>
#include <string_view>

#include "lockstep/io/image.h"

namespace lockstep {

/// The style of drawings, which every .svg file has, too.
std::string chart_style();
/// The style of the page, chart_style() among it.
std::string page_style();

/// What is drawn alike in every figure: a mode, or a part of a step.
struct Series {
  std::string name = {};   // in the legend; empty: not there
  std::string style = {};  // the CSS class of its colour and dashes
  int shape = 0;           // of its dots
};

/// The same in every figure and report; cells of a curve (compare/cell.h) are drawn as their mode.
/// A mode that the table does not name gets one of the styles that are left, by its name.
Series mode_series(std::string_view mode);
/// Part `number` (0 to 4) of a whole.
Series part_series(std::string name, std::size_t number);

/// The mode's colour for pictures, which are the same in the dark: lighter than its lines.
Color mode_color(std::string_view mode);

}  // namespace lockstep
