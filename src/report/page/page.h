#pragma once
// A page of HTML that needs nothing but itself: no script, no network, no other file.

#include <string>
#include <vector>

#include "report/page/markup.h"
#include "report/page/svg.h"

namespace lockstep {

/// A chart, what it says in words, and the numbers behind it.
struct Figure {
  std::string name;  // stem of its .svg file
  Svg svg;
  std::string caption;  // plain text; may be empty
  DataTable data;
};

class Page {
 public:
  /// The title of the window and, above the headline, of the page.
  explicit Page(std::string title) : title_(std::move(title)) {}

  /// One sentence.
  void headline(const std::string& claim);
  /// Begins a section, which the list of contents names.
  void section(const std::string& id, const std::string& heading);
  void paragraph(const std::string& text);
  /// Smaller: what one must know to read a figure.
  void note(const std::string& text);
  void warning(const std::string& text);
  void add(Markup markup);
  /// Side by side as far as the page is wide enough.
  void figures(std::vector<Figure> figures);
  void table(const DataTable& table);
  /// The first two columns are words.
  void words(const DataTable& table);

  std::string html() const;
  const std::vector<Figure>& all_figures() const { return figures_; }

 private:
  struct Entry {
    std::string id, heading;
  };
  std::string title_, head_, body_;
  std::vector<Entry> contents_;
  std::vector<Figure> figures_;
};

}  // namespace lockstep
