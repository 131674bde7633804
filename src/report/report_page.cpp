#include "report/report_page.h"

#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "report/sections/sections.h"

namespace lockstep {

namespace fs = std::filesystem;

std::string report_title(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const fs::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return "Lockstep report: " + name.string();
}

Page make_report(const ReportData& data, const Examples* examples) {
  Page page(data.title);
  add_answer(data, page);
  add_images_curve(data, page);
  add_scores(data, page);
  add_curves(data, page);
  add_classes(data, page);
  add_lens(data, page);
  add_times(data, page);
  if (examples != nullptr) add_examples(*examples, page);
  add_runs(data, page);
  return page;
}

std::vector<fs::path> write_figures(const Page& page, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(concat("cannot make ", folder.string(), ": ", error.message()));
  std::vector<fs::path> paths;
  for (const Figure& figure : page.all_figures()) {
    paths.push_back(folder / (figure.name + ".svg"));
    write_file_atomically(paths.back(), figure.svg.file());
  }
  return paths;
}

}  // namespace lockstep
