#pragma once
// The report of a comparison or a run as one HTML file that needs nothing else.

#include <filesystem>
#include <string>
#include <vector>

#include "report/data/examples.h"
#include "report/data/report_data.h"
#include "report/page/page.h"

namespace lockstep {

/// What a report on what lies in `folder` is called.
std::string report_title(const std::filesystem::path& folder);

/// All sections. Never throws for what runs lack: their sections are left out, or say so.
/// `examples`: null leaves their section out.
Page make_report(const ReportData& data, const Examples* examples);

/// Writes each figure as <folder>/<name>.svg, and makes the folder. Returns the paths.
std::vector<std::filesystem::path> write_figures(const Page& page,
                                                 const std::filesystem::path& folder);

}  // namespace lockstep
