#pragma once
// A table of text as aligned Markdown, which reads well in a terminal too.

#include <optional>
#include <string>
#include <vector>

#include "compare/statistics.h"

namespace lockstep {

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

/// Columns are padded to equal width; the first is left-aligned, the others right-aligned.
std::string to_markdown(const Table& table);

/// `value` with `digits` after the point; "-" for none or NaN.
std::string format_number(std::optional<double> value, int digits);
/// As format_number, with a leading + for positive values.
std::string format_signed(std::optional<double> value, int digits);
/// "40.21 ± 1.30", times `factor`; "-" without values.
std::string plus_minus(const MeanSpread& spread, int digits, double factor = 1);
/// A p-value with three digits after the point; "<0.001" where it is less; "-" for none.
std::string format_p(std::optional<double> value);

}  // namespace lockstep
