// lockstep report: runs or a comparison as one page of HTML.

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "app/command.h"
#include "app/files.h"
#include "compare/present_runs.h"
#include "core/json.h"
#include "core/words.h"
#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "report/report_page.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  CommonArguments common;
  std::vector<std::filesystem::path> inputs;  // run folders, folders of comparisons
  std::filesystem::path figures;              // --figures DIR; empty: none
  bool no_images = false;                     // --no-images: no predictions of example images
};

/// One folder's report lies in it, that of several in the current folder.
fs::path output_of(const ReportArguments& arguments) {
  const fs::path& output = arguments.common.output;
  if (output.empty()) {
    return arguments.inputs.size() == 1 ? arguments.inputs.front() / "report.html" : "report.html";
  }
  check_output_file("-o", output);
  return output;
}

void declare_report(Options& options, ReportArguments& arguments) {
  options.add("FOLDER", arguments.inputs, "run folders, or folders of comparisons")
      .takes("RUN")
      .required();
  options.add_output("FILE", "the page; default: report.html in the folder");
  options
      .add("--figures", arguments.figures,
           "also write every figure as an .svg file into this folder")
      .takes("DIR");
  options.add_flag("--no-images", arguments.no_images,
                   "no example images, for which the networks must be run");
  options.add_json();
}

int run_report(const ReportArguments& arguments) {
  if (arguments.inputs.empty()) {
    throw ConfigError("report needs the folder of a run or of a comparison");
  }
  const fs::path output = output_of(arguments);
  std::vector<fs::path> folders;
  std::vector<FailedRun> failed;
  for (const fs::path& input : arguments.inputs) {
    for (FailedRun& run : failed_runs(input)) failed.push_back(std::move(run));
    for (const fs::path& folder : run_folders(input)) folders.push_back(folder);
    for (const std::string& warning : left_out_runs(input))
      fmt::print(stderr, "warning: {}\n", warning);
  }
  ReportData data = read_report(folders, *arguments.common.tables);
  if (data.comparison) add_failed(*data.comparison, std::move(failed));
  data.title = report_title(arguments.inputs.front());
  std::optional<Examples> examples;
  if (!arguments.no_images) examples = find_examples(data, *arguments.common.tables);
  const Page page = make_report(data, examples ? &*examples : nullptr);
  const std::string html = page.html();
  write_file_atomically(output, html);
  std::vector<fs::path> figures;
  if (!arguments.figures.empty()) figures = write_figures(page, arguments.figures);
  if (arguments.common.json) {
    Json json{{"page", output.string()}, {"runs", data.runs.size()}, {"bytes", html.size()}};
    json["figures"] = Json::array();
    for (const auto& figure : figures) json["figures"].push_back(figure.string());
    fmt::print("{}\n", json_text(json, 2));
    return kExitDone;
  }
  fmt::print("{}: {}, {} KB\n", output.string(), count_of(data.runs.size(), "run"),
             (html.size() + 500) / 1000);
  if (!arguments.figures.empty())
    fmt::print("{}: {} figures\n", arguments.figures.string(), figures.size());
  return kExitDone;
}

}  // namespace

Command report_command() {
  return {.name = "report",
          .says = "Write runs or a comparison as one page of HTML",
          .page = "report",
          .examples = {{"lockstep report runs/compare", "writes runs/compare/report.html"},
                       {"lockstep report runs/first runs/second -o both.html --figures figures",
                        "two runs on one page, and its figures as files"}},
          .declare = declares(declare_report, run_report)};
}

}  // namespace lockstep
