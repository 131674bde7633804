#pragma once
// Validation images under the weights of each mode: what a figure of mIoU looks like.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "report/data/report_data.h"

namespace lockstep {

struct ExampleMode {
  std::string mode;
  std::string checkpoint;  // its file
};

/// One image. Of a classification the maps are of one pixel.
struct Example {
  std::string name;  // of its file
  Image image;       // as validation has it
  LabelMap truth;
  std::vector<LabelMap> predictions;  // [mode] classes
};

struct Examples {
  std::string why_not;  // why there are none; empty: there are
  std::string rule;     // how they were chosen, in a sentence
  Task task = Task::kSegmentation;
  std::uint64_t seed = 0;
  std::vector<ExampleMode> modes;
  std::vector<std::string> classes;
  std::vector<Color> colors;  // [class]
  int ignore_index = 255;
  std::vector<Example> samples;

  bool counts(Label label) const { return label < classes.size() && label != ignore_index; }
};

/// Share of the labelled pixels on which the predictions are not all the same.
double disagreement(const Examples& examples, const Example& example);
/// Share of the labelled pixels on which the prediction of a mode is right; NaN without any.
double accuracy(const Examples& examples, const Example& example, std::size_t mode);

/// Predicts the first validation images with the last checkpoint of every mode's lowest seed that
/// all have, on the run's first device or, where that is not here, the processor, and chooses
/// a few. Never throws: what stands in the way is told by `why_not`.
Examples find_examples(const ReportData& data, const Tables& tables);

}  // namespace lockstep
