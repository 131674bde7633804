#include "report/page/page.h"

#include <fmt/format.h>

#include <utility>

#include "report/page/style.h"

namespace lockstep {
namespace {

std::string element(const char* open, const std::string& text, const char* name) {
  return fmt::format("<{}>{}</{}>\n", open, escaped(text).text, name);
}

std::string figure_html(const Figure& figure) {
  std::string html = "<figure>\n" + figure.svg.in_page().text;
  if (!figure.caption.empty()) html += element("figcaption", figure.caption, "figcaption");
  if (!figure.data.rows.empty()) {
    html += "<details><summary>Numbers</summary>\n<div class=\"key\">" + to_html(figure.data).text +
            "</div></details>\n";
  }
  return html + "</figure>\n";
}

}  // namespace

void Page::headline(const std::string& claim) { head_ += element("h1", claim, "h1"); }

void Page::section(const std::string& id, const std::string& heading) {
  contents_.push_back({id, heading});
  body_ += fmt::format("<h2 id=\"{}\">{}</h2>\n", escaped(id).text, escaped(heading).text);
}

void Page::paragraph(const std::string& text) {
  (contents_.empty() ? head_ : body_) += element("p", text, "p");
}

void Page::note(const std::string& text) {
  (contents_.empty() ? head_ : body_) += element("p class=\"note\"", text, "p");
}

void Page::warning(const std::string& text) {
  (contents_.empty() ? head_ : body_) += element("p class=\"warning\"", "Warning: " + text, "p");
}

void Page::add(Markup markup) { (contents_.empty() ? head_ : body_) += markup.text; }

void Page::figures(std::vector<Figure> figures) {
  if (figures.empty()) return;
  body_ += "<div class=\"figures\">\n";
  for (Figure& figure : figures) {
    body_ += figure_html(figure);
    figures_.push_back(std::move(figure));
  }
  body_ += "</div>\n";
}

void Page::table(const DataTable& table) { add(to_html(table)); }

void Page::words(const DataTable& table) { add(to_html(table, "words")); }

std::string Page::html() const {
  std::string contents;
  for (const Entry& entry : contents_) {
    contents +=
        fmt::format("<a href=\"#{}\">{}</a> ", escaped(entry.id).text, escaped(entry.heading).text);
  }
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n"
      "<header>\n<p class=\"name\">{0}</p>\n{2}<nav aria-label=\"Contents\">{3}</nav>\n</header>\n"
      "{4}</main>\n</body>\n</html>\n",
      escaped(title_).text, page_style(), head_, contents, body_);
}

}  // namespace lockstep
