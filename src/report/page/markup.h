#pragma once
// Text that is HTML or SVG already. What comes from outside (names of classes, layers, files)
// becomes it through `escaped` alone, so that nothing in a page is taken for markup by accident.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Markup {
  std::string text;
};

/// `text` with &, <, >, " and ' as entities: safe between tags and in quoted attributes. What is
/// no UTF-8, and control characters other than newline and tab, which HTML does not allow, become
/// U+FFFD.
Markup escaped(std::string_view text);

/// The characters of UTF-8; a byte that continues none is one with those that follow it.
std::vector<std::string_view> utf8_characters(std::string_view text);

/// `value` with `digits` after the point, and unrounded for programs: <data value="...">.
/// "–" for none or NaN.
Markup number(std::optional<double> value, int digits);
/// As `number`, with a leading + for positive values.
Markup signed_number(std::optional<double> value, int digits);

/// An <img> that carries its PNG. `alternative`: what it shows, in words.
Markup picture(std::span<const std::uint8_t> png, std::string_view alternative);

/// `value` for a sentence: with a sign, and `digits` after the point.
std::string signed_text(double value, int digits);

/// A coordinate or attribute: at most one digit after the point.
std::string coordinate(double value);

/// What stands behind a chart: a header and rows as long as it. The first column is left-aligned
/// and a header of its row, the others are numbers.
struct DataTable {
  std::vector<std::string> header;
  std::vector<std::vector<Markup>> rows;
};

/// `kind`: a CSS class, or empty.
Markup to_html(const DataTable& table, std::string_view kind = "");

}  // namespace lockstep
