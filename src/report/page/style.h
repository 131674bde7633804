#pragma once
// Colours, lines and type of the report: CSS variables with a light and a dark value.

#include <string>
#include <string_view>

namespace lockstep {

/// Of drawings: also part of every .svg file.
std::string chart_style();
/// Of the page: it, and chart_style().
std::string page_style();

/// The number of a mode's colour, dashes and marks: the same in every figure. local, sync and
/// ghost have one each, all else shares another.
int mode_style(std::string_view mode);
/// "m1" for the mode: the class of what is drawn for it.
std::string mode_class(std::string_view mode);

/// Levels of the heat maps' ramp: classes "h0" (lowest) to "h7".
constexpr int kHeatLevels = 8;

}  // namespace lockstep
