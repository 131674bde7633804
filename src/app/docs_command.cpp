// lockstep docs: the pages of the documentation, where they lie and what they say.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "app/command.h"
#include "app/files.h"
#include "config/suggest.h"
#include "core/json.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

struct DocsArguments {
  CommonArguments common;
  std::string page;  // its name; empty: the list
};

Json to_json(const DocsPage& page) {
  return {{"name", page.name}, {"title", page.title}, {"path", page.path.string()}};
}

void list(const std::vector<DocsPage>& pages, bool as_json) {
  if (as_json) {
    Json json = Json::array();
    for (const DocsPage& page : pages) json.push_back(to_json(page));
    fmt::print("{}\n", json_text(json, 2));
    return;
  }
  std::size_t width = 0;
  for (const DocsPage& page : pages) width = std::max(width, page.name.size());
  for (const DocsPage& page : pages) fmt::print("{:<{}}  {}\n", page.name, width, page.title);
  fmt::print("\nThey lie in {}. `lockstep docs PAGE` prints one.\n",
             share_folder().value_or("").string());
}

const DocsPage& find_page(const std::vector<DocsPage>& pages, const std::string& name) {
  std::vector<std::string> names;
  for (const DocsPage& page : pages) {
    if (page.name == name) return page;
    names.push_back(page.name);
  }
  const auto nearest = nearest_word(name, names);
  throw ConfigError(fmt::format(
      "docs: there is no page {}{}", name,
      nearest ? fmt::format("; did you mean {}?", *nearest) : "; `lockstep docs` lists them"));
}

void print(const DocsPage& page, bool as_json) {
  std::ifstream stream(page.path);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.fail() || text.empty()) {
    const std::string why_not = why_unreadable(page.path);
    throw Error(fmt::format("docs: {} cannot be read: {}", page.path.string(),
                            why_not.empty() ? "it is empty" : why_not));
  }
  if (!as_json) {
    fmt::print("{}", text);
    return;
  }
  Json json = to_json(page);
  json["text"] = text;
  fmt::print("{}\n", json_text(json, 2));
}

void declare_docs(Options& options, DocsArguments& arguments) {
  options.add("PAGE", arguments.page, "its name in the list; default: the list").takes("");
  options.add_json();
}

int run_docs(const DocsArguments& arguments) {
  const std::vector<DocsPage> pages = docs_pages();
  if (arguments.page.empty()) {
    list(pages, arguments.common.json);
  } else {
    print(find_page(pages, arguments.page), arguments.common.json);
  }
  return kExitDone;
}

}  // namespace

Command docs_command() {
  return {.name = "docs",
          .says = "List the pages of the documentation, or print one",
          .examples = {{"lockstep docs", "the list, and where the pages lie"},
                       {"lockstep docs run_folder", "one page"}},
          .declare = declares(declare_docs, run_docs)};
}

}  // namespace lockstep
