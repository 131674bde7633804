#include "run/confusion_matrix.h"

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

std::optional<double> mean_of_defined(std::span<const std::optional<double>> values) {
  double sum = 0;
  int defined = 0;
  for (const std::optional<double>& value : values) {
    if (!value) continue;
    sum += *value;
    ++defined;
  }
  return defined == 0 ? std::nullopt : std::optional(sum / defined);
}

}  // namespace

std::optional<double> percent(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return std::nullopt;
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

ConfusionMetrics confusion_metrics(std::span<const std::int64_t> confusion, int classes) {
  const auto size = static_cast<std::size_t>(classes);
  LOCKSTEP_CHECK(confusion.size() == size * size, "a confusion matrix of ", classes,
                 " classes has ", size * size, " entries, got ", confusion.size());
  ConfusionMetrics metrics;
  std::vector<std::optional<double>> present;
  std::int64_t correct = 0, total = 0;
  for (std::size_t c = 0; c < size; ++c) {
    std::int64_t labelled = 0, predicted = 0;
    for (std::size_t other = 0; other < size; ++other) {
      labelled += confusion[c * size + other];
      predicted += confusion[other * size + c];
    }
    const std::int64_t hit = confusion[c * size + c];
    metrics.iou.push_back(percent(hit, labelled + predicted - hit));
    metrics.acc.push_back(percent(hit, labelled));
    if (labelled > 0) present.push_back(metrics.iou.back());
    correct += hit;
    total += labelled;
  }
  metrics.a_acc = percent(correct, total);
  metrics.m_acc = mean_of_defined(metrics.acc);
  metrics.m_iou = mean_of_defined(metrics.iou);
  metrics.m_iou_present = mean_of_defined(present);
  return metrics;
}

}  // namespace lockstep
