#pragma once
// The parts of a report, in its order. Each adds its heading, words and figures to the page, or
// nothing where the runs have nothing to say about it.

#include <string>

#include "report/data/examples.h"
#include "report/data/report_data.h"
#include "report/page/page.h"

namespace lockstep {

/// The answer in one sentence, the others after it, and the comparison's warnings.
void add_answer(const ReportData& data, Page& page);
/// The curve: scores over the images that share statistics.
void add_images_curve(const ReportData& data, Page& page);
/// Scores by mode and seed, and the differences seed by seed.
void add_scores(const ReportData& data, Page& page);
/// Loss, score, learning rate and gradient norm over steps.
void add_curves(const ReportData& data, Page& page);
/// IoU (of classifications accuracy) of every class.
void add_classes(const ReportData& data, Page& page);
/// The BatchNorm lens: layers over steps.
void add_lens(const ReportData& data, Page& page);
/// Where a step's time goes, by mode and by device.
void add_times(const ReportData& data, Page& page);
/// Pictures of validation images with every mode's prediction.
void add_examples(const Examples& examples, Page& page);
/// What differs between the configurations, the machine, the files.
void add_runs(const ReportData& data, Page& page);

/// A row of a plot: the seeds' dots, the line across their mean, and its interval.
struct SeedRow {
  std::string label;
  std::string mode;                                           // how it is drawn
  std::vector<std::pair<std::uint64_t, double>> points = {};  // (seed, value)
  std::optional<double> mean = {};
  std::optional<Interval> interval = {};
  std::string number = {};  // beside the mean; takes high rows
};

void add_row(Plot& plot, const SeedRow& row);

/// "local", or for one run "local, seed 0".
std::string describe_runs(const ReportData& data);

}  // namespace lockstep
