#include "report/page/markup.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
}

Markup data_element(double value, const std::string& shown) {
  return {fmt::format("<data value=\"{}\">{}</data>", value, shown)};
}

// The typographic minus is as wide as a plus and does not break from its number.
std::string with_minus(std::string text) {
  if (text.starts_with('-')) text.replace(0, 1, "−");
  return text;
}

std::string row_html(const std::vector<Markup>& cells) {
  std::string html = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    html +=
        i == 0 ? "<th scope=\"row\">" + cells[i].text + "</th>" : "<td>" + cells[i].text + "</td>";
  }
  return html + "</tr>\n";
}

}  // namespace

Markup escaped(std::string_view text) {
  std::string html;
  html.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        if (is_control(c)) {
          html += "\uFFFD";
        } else {
          html += c;
        }
    }
  }
  return {html};
}

Markup number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return {"–"};
  return data_element(*value, with_minus(fmt::format("{:.{}f}", *value, digits)));
}

Markup signed_number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return {"–"};
  return data_element(*value, signed_text(*value, digits));
}

std::string signed_text(double value, int digits) {
  return with_minus(fmt::format("{:+.{}f}", value, digits));
}

std::string coordinate(double value) {
  const double rounded = std::round(value * 10) / 10;
  return fmt::format("{}", rounded == 0 ? 0.0 : rounded);
}

Markup to_html(const DataTable& table, std::string_view kind) {
  std::string html = fmt::format("<div class=\"scroll\"><table{}>\n<thead><tr>",
                                 kind.empty() ? "" : fmt::format(" class=\"{}\"", kind));
  for (const std::string& name : table.header) {
    html += "<th scope=\"col\">" + escaped(name).text + "</th>";
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    LOCKSTEP_CHECK(row.size() == table.header.size(), "expected ", table.header.size(),
                   " cells, got ", row.size());
    html += row_html(row);
  }
  return {html + "</tbody></table></div>\n"};
}

}  // namespace lockstep
