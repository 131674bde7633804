#pragma once
// Curves drawn with characters.

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// A curve and its name; points in order of x.
struct TerminalCurve {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

/// The curves' points in a field of `columns` x `rows` characters, a mark for each curve ('a', 'b',
/// ...; '*' where they meet), with the range of y beside it, that of x below and the names. No
/// point is averaged: where several fall on one place there is one mark.
std::string plot_text(const std::vector<TerminalCurve>& curves, int columns, int rows);

/// `columns` of plot_text for a terminal of so many columns, of which 40 to 120 are used; 0: it is
/// unknown, and 99 are.
int plot_columns(int terminal_columns);

}  // namespace lockstep
