#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cctype>

#include "app/command.h"
#include "io/written_file.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Text that roff prints as it is. A hyphen that may be copied to a shell is its minus.
std::string roff(std::string_view text) {
  std::string escaped;
  if (text.starts_with('.') || text.starts_with('\'')) escaped = "\\&";
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", roff(text)); }
std::string italic(std::string_view text) { return fmt::format("\\fI{}\\fR", roff(text)); }

/// "A tagged paragraph": what, and what there is to say.
std::string entry(const std::string& tag, std::string_view text) {
  return fmt::format(".TP\n{}\n{}\n", tag, roff(text));
}

std::string option_tag(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(bold("-" + name));
  for (const std::string& name : option.get_lnames()) names.push_back(bold("--" + name));
  std::string tag = fmt::format("{}", fmt::join(names, ", "));
  if (option.get_type_size() != 0) tag += " " + italic(option.get_type_name());
  return tag;
}

std::string title(std::string_view name) {
  std::string upper;
  for (const char c : name) upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(".TH {} 1 \"\" \"Lockstep {}\" \"User Commands\"\n.ad l\n.nh\n", roff(upper),
                     LOCKSTEP_VERSION);
}

std::string begin(std::string_view name, std::string what) {
  what[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(what[0])));
  if (what.ends_with('.')) what.pop_back();
  return fmt::format("{}.SH NAME\n{} \\- {}\n", title(name), roff(name), roff(what));
}

std::string synopsis(const CLI::App& app, std::string_view words) {
  std::string text = fmt::format(".SH SYNOPSIS\n.B {}\n[\\fIOPTIONS\\fR]", roff(words));
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const bool may_repeat = option->get_expected_max() >= CLI::detail::expected_max_vector_size;
    const std::string name = italic(option->get_name(true, false)) + (may_repeat ? "..." : "");
    text += option->get_required() ? " " + name : fmt::format(" [{}]", name);
  }
  return text + "\n";
}

std::string arguments(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(true, false), type = option->get_type_name();
    text +=
        entry(italic(name) + (type.empty() ? "" : ": " + roff(type)), option->get_description());
  }
  return text.empty() ? "" : ".SH ARGUMENTS\n" + text;
}

std::string options(const CLI::App& app) {
  std::string text = ".SH OPTIONS\n";
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) text += entry(option_tag(*option), option->get_description());
  }
  return text;
}

std::string examples(const Command& command) {
  std::string text;
  for (const HelpExample& example : command.examples)
    text += entry(bold(example.command), example.says);
  return text.empty() ? "" : ".SH EXAMPLES\n" + text;
}

std::string exit_status() {
  std::string text = ".SH EXIT STATUS\n";
  for (const auto& [code, says] : exit_codes()) text += entry(bold(fmt::to_string(code)), says);
  return text;
}

std::string see_also(const std::vector<std::string>& pages, std::string_view docs) {
  std::string text = ".SH SEE ALSO\n";
  for (const std::string& page : pages)
    text += fmt::format("{}(1){}\n", bold(page), page == pages.back() ? "" : ",");
  if (!docs.empty())
    text +=
        fmt::format(".PP\nThe documentation: {}.\n", bold(fmt::format("lockstep docs {}", docs)));
  return text;
}

std::string page_of_subcommand(const DeclaredCommand& declared) {
  const Command& command = declared.command;
  return begin("lockstep-" + command.name, command.says) +
         synopsis(*declared.parser, "lockstep " + command.name) + arguments(*declared.parser) +
         options(*declared.parser) + examples(command) + exit_status() +
         see_also({"lockstep"}, command.page);
}

std::string page_of_program(const CLI::App& app, std::span<const DeclaredCommand> commands) {
  std::string text = begin("lockstep", "trains segmentation networks with synchronized BatchNorm");
  text += ".SH SYNOPSIS\n.B lockstep\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n";
  text += fmt::format(".SH DESCRIPTION\n{}\n.SH COMMANDS\n", roff(program().says));
  std::vector<std::string> pages;
  for (const DeclaredCommand& declared : commands) {
    pages.push_back("lockstep-" + declared.command.name);
    text += entry(bold(pages.back()) + "(1)", declared.command.says);
  }
  return text + options(app) + examples(program()) + exit_status() +
         see_also(pages, program().page);
}

void write(const std::filesystem::path& file, const std::string& text) {
  WrittenFile written(file, WrittenFile::Mode::kReplace);
  written.write(text);
  written.close();
}

}  // namespace

void write_man_pages(const CLI::App& app, std::span<const DeclaredCommand> commands,
                     const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write(folder / "lockstep.1", page_of_program(app, commands));
  for (const DeclaredCommand& declared : commands) {
    write(folder / fmt::format("lockstep-{}.1", declared.command.name),
          page_of_subcommand(declared));
  }
}

}  // namespace lockstep
