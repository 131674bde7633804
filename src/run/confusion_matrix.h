#pragma once
// Accuracy and intersection over union from an int64 confusion matrix. A figure is undefined
// (nullopt), never 0, where its denominator is 0; means leave undefined classes out.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep {

/// All in percent, not rounded.
struct ConfusionMetrics {
  std::optional<double> a_acc;  // correct pixels / labelled pixels; of images: top-1 accuracy
  std::optional<double> m_acc;  // mean of `acc`
  std::optional<double> m_iou;  // mean of `iou` over defined classes, as mmsegmentation's nanmean:
                                // a class that is predicted but never labelled counts as 0
  std::optional<double> m_iou_present;     // over classes that are labelled, as detectron2's
  std::vector<std::optional<double>> iou;  // [class] intersection / union
  std::vector<std::optional<double>> acc;  // [class] intersection / labelled
};

/// `part` of `whole`; undefined where there is no whole.
std::optional<double> percent(std::int64_t part, std::int64_t whole);

/// `confusion` [classes, classes], row: label, column: prediction. Throws Error on a wrong size.
ConfusionMetrics confusion_metrics(std::span<const std::int64_t> confusion, int classes);

}  // namespace lockstep
