#pragma once
// Errors in a configuration, collected and shown together as a compiler would: file:line:column,
// the line, a caret and a hint.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A text that errors point into: a file, or a `-s key=value` argument (which has no lines to
/// show).
struct SourceText {
  std::string name;
  std::vector<std::string> lines;
};

SourceText make_source(std::string name, std::string_view text);

/// A stretch of one line; 1-based, line 0: the text as a whole.
struct SourceSpan {
  const SourceText* source = nullptr;
  int line = 0;
  int column = 0;
  int length = 1;
};

/// "camvid.toml:12:8"; the text's name alone where there is no line to speak of.
std::string location(const SourceSpan& where);

class Diagnostics {
 public:
  /// `hint` stands beside the caret (or behind the message when there is no line to show); may be
  /// empty.
  void error(const SourceSpan& where, const std::string& message, const std::string& hint = "");
  void warning(const SourceSpan& where, const std::string& message);

  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Throws ConfigError with every error, in the order of the text, if there is one.
  void throw_if_errors() const;

 private:
  struct Entry {
    int line = 0, column = 0;
    std::string text;
  };
  std::vector<Entry> errors_;
  std::vector<std::string> warnings_;
};

}  // namespace lockstep
