#include "compare/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Characters, not bytes: UTF-8 continuation bytes do not count.
std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::size_t> column_widths(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& name : table.header) {
    widths.push_back(std::max<std::size_t>(display_width(name), 3));
  }
  for (const auto& row : table.rows) {
    LOCKSTEP_CHECK(row.size() == widths.size(), "expected ", widths.size(), " cells, got ",
                   row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  }
  return widths;
}

std::string format_row(const std::vector<std::string>& cells,
                       const std::vector<std::size_t>& widths) {
  std::string line = "|";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - display_width(cells[i]), ' ');
    line += ' ' + (i == 0 ? cells[i] + padding : padding + cells[i]) + " |";
  }
  return line + '\n';
}

}  // namespace

std::string to_markdown(const Table& table) {
  const std::vector<std::size_t> widths = column_widths(table);
  std::string text = format_row(table.header, widths) + "|";
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::string dashes(widths[i], '-');
    text += i == 0 ? ":" + dashes + "-|" : "-" + dashes + ":|";
  }
  text += '\n';
  for (const auto& row : table.rows) text += format_row(row, widths);
  return text;
}

std::string format_number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return "-";
  return fmt::format("{:.{}f}", *value, digits);
}

std::string format_signed(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return "-";
  return fmt::format("{:+.{}f}", *value, digits);
}

std::string plus_minus(const MeanSpread& spread, int digits, double factor) {
  if (spread.count == 0) return "-";
  const std::string mean = format_number(factor * spread.mean, digits);
  if (!spread.standard_deviation) return mean;
  return mean + " ± " + format_number(factor * *spread.standard_deviation, digits);
}

std::string format_p(std::optional<double> value) {
  return value && *value < 0.001 ? "<0.001" : format_number(value, 3);
}

}  // namespace lockstep
