#include "report/page/style.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "compare/cell.h"
#include "lockstep/core/check.h"
#include "report/page/style_sheets.h"

namespace lockstep {
namespace {

// A mode's place is the number of its style in chart.css; the styles after the last are for modes
// that are not here.
constexpr std::array<std::string_view, 8> kModes{"local",    "sync",  "ghost",  "group",
                                                 "instance", "layer", "frozen", "renorm"};
constexpr int kStyles = 12;

int style_of(std::string_view mode) {
  if (mode == "virtual") mode = "ghost";  // as earlier versions wrote it
  const auto found = std::ranges::find(kModes, mode);
  if (found != kModes.end()) return static_cast<int>(found - kModes.begin());
  std::uint32_t sum = 0;
  for (const char c : mode) sum = 31 * sum + static_cast<unsigned char>(c);
  return static_cast<int>(kModes.size() + sum % (kStyles - kModes.size()));
}

}  // namespace

std::string chart_style() { return kChartStyleSheet; }

std::string page_style() { return chart_style() + kPageStyleSheet; }

Series mode_series(std::string_view label) {
  const std::string_view mode = mode_of_label(label);
  const int style = style_of(mode);
  const std::string line = line_of_label(label);
  const char* by = line == mode ? "" : " by";  // another evaluation of the mode's weights
  return {line, "m" + std::to_string(style) + by, style};
}

Series part_series(std::string name, std::size_t number) {
  return {std::move(name), "p" + std::to_string(number)};
}

Color mode_color(std::string_view mode) {
  const std::string sheet = kChartStyleSheet;
  const std::string name = concat("--m", style_of(mode_of_label(mode)), ": ");
  const std::size_t at = sheet.find(name);
  LOCKSTEP_CHECK(at != std::string::npos, "chart.css has no ", name);
  Color color = parse_color(sheet.substr(at + name.size(), 7));
  for (std::uint8_t& part : color) part = static_cast<std::uint8_t>((3 * part + 255) / 4);
  return color;
}

}  // namespace lockstep
