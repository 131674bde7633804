#include "report/page/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/utf8.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
}

const char* entity_of(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return nullptr;
  }
}

std::string base64(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t value = 0;
    for (std::size_t k = 0; k < 3; ++k) value = value << 8 | (k < count ? bytes[i + k] : 0U);
    for (std::size_t k = 0; k < 4; ++k) {
      text += k <= count ? kDigits[value >> (18 - 6 * k) & 63U] : '=';
    }
  }
  return text;
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
  for (const std::string_view character : utf8_characters(text)) {
    if (const char* entity = entity_of(character.front())) {
      html += entity;
    } else if (is_control(character.front()) || !is_utf8(character)) {
      html += "\uFFFD";
    } else {
      html += character;
    }
  }
  return {html};
}

std::vector<std::string_view> utf8_characters(std::string_view text) {
  std::vector<std::string_view> all;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    all.push_back(text.substr(i, end - i));
    i = end;
  }
  return all;
}

Markup number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return {"–"};
  return data_element(*value, with_minus(fmt::format("{:.{}f}", *value, digits)));
}

Markup signed_number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return {"–"};
  return data_element(*value, signed_text(*value, digits));
}

Markup picture(std::span<const std::uint8_t> png, std::string_view alternative) {
  return {fmt::format("<img alt=\"{}\" src=\"data:image/png;base64,{}\">",
                      escaped(alternative).text, base64(png))};
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
