#include "config/diagnostics.h"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool has_line(const SourceSpan& where) {
  return where.source != nullptr && where.line >= 1 &&
         where.line <= static_cast<int>(where.source->lines.size());
}

// The line and, under it, the caret; tabs are kept so that the caret stays in its column.
std::string excerpt(const SourceSpan& where, const std::string& hint) {
  const std::string& line = where.source->lines[static_cast<std::size_t>(where.line - 1)];
  const int before = std::clamp(where.column - 1, 0, static_cast<int>(line.size()));
  const int length =
      std::clamp(where.length, 1, std::max(1, static_cast<int>(line.size()) - before));
  std::string blank = line.substr(0, static_cast<std::size_t>(before));
  for (char& c : blank) c = c == '\t' ? '\t' : ' ';
  return fmt::format("\n{:>6} | {}\n       | {}{}{}{}", where.line, line, blank,
                     std::string(static_cast<std::size_t>(length), '^'), hint.empty() ? "" : " ",
                     hint);
}

}  // namespace

std::string location(const SourceSpan& where) {
  if (where.source == nullptr) return "configuration";
  if (where.line == 0 || where.source->lines.empty()) return where.source->name;
  return fmt::format("{}:{}:{}", where.source->name, where.line, where.column);
}

SourceText make_source(std::string name, std::string_view text) {
  SourceText source{std::move(name), {}};
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    source.lines.push_back(line);
  }
  return source;
}

void Diagnostics::error(const SourceSpan& where, const std::string& message,
                        const std::string& hint) {
  std::string text = fmt::format("{}: error: {}", location(where), message);
  if (has_line(where)) {
    text += excerpt(where, hint);
  } else if (!hint.empty()) {
    text += "; " + hint;
  }
  errors_.push_back({where.line, where.column, std::move(text)});
}

void Diagnostics::warning(const SourceSpan& where, const std::string& message) {
  warnings_.push_back(fmt::format("{}: {}", location(where), message));
}

void Diagnostics::throw_if_errors() const {
  if (errors_.empty()) return;
  std::vector<Entry> sorted = errors_;
  std::ranges::stable_sort(sorted, [](const Entry& a, const Entry& b) {
    const auto place = [](const Entry& entry) {  // what concerns the whole text comes last
      return std::tuple(entry.line == 0, entry.line, entry.column);
    };
    return place(a) < place(b);
  });
  std::string all;
  for (const Entry& entry : sorted) all += (all.empty() ? "" : "\n") + entry.text;
  throw ConfigError(all);
}

}  // namespace lockstep
