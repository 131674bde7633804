#include "train/inference/evaluate_augmented.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>

#include "core/seconds_since.h"
#include "data/data_warnings.h"
#include "data/sample_store.h"
#include "lockstep/core/progress.h"
#include "nn/argmax.h"
#include "train/inference/inference.h"

namespace lockstep {
namespace {

/// What an image comes to.
struct ImageScore {
  double loss = 0;          // sum over its labels
  std::int64_t labels = 0;  // that count
  bool in_top5 = false;     // of the whole image
  TileMismatch mismatch = {};
};

class AugmentedEvaluation {
 public:
  AugmentedEvaluation(const TrainedModel& model, const TestTimeAugmentation& augmentation,
                      const std::vector<Device>& devices)
      : store_(model.config.data, Split::kVal, model.config.run.seed),
        ignored_(ignored_label(model.config.data)),
        classes_(static_cast<std::size_t>(model.config.data.num_classes)),
        inference_(model, devices,
                   {.augmentation = augmentation,
                    .windows = model.config.windows(model.config.bn.eval_stats),
                    .compares_windows = true}),
        in_windows_(model.config.eval.window.has_value()),
        images_(static_cast<std::size_t>(store_.size())),
        confusion_(classes_ * classes_) {}

  void run() {
    LongWork work("evaluating", "images", store_.size());
    inference_.for_each(store_.size(), [&](std::int64_t index, int device) {
      score(index, device);
      work.advance();
    });
  }
  Evaluation result() const;
  const Dataset& dataset() const { return store_.dataset(); }

 private:
  void score(std::int64_t index, int device);
  void add(const std::vector<std::int64_t>& confusion);

  SampleStore store_;
  Label ignored_;
  std::size_t classes_;
  Inference inference_;
  bool in_windows_;
  std::vector<ImageScore> images_;
  std::mutex mutex_;
  std::vector<std::int64_t> confusion_;  // [classes, classes]; guarded by mutex_
};

void AugmentedEvaluation::score(std::int64_t index, int device) {
  SampleScratch scratch;
  const Sample& sample = store_.fetch(index, scratch);
  const Size size{sample.image.height, sample.image.width};
  const ImagePrediction prediction = inference_.predict(device, sample.image, size, true);
  std::vector<std::int64_t> confusion(classes_ * classes_), counts(classes_);
  store_.count_labels(index, sample.labels.pixels, counts);
  ImageScore& image = images_[static_cast<std::size_t>(index)];
  image.mismatch = prediction.mismatch;
  image.labels = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  for (std::size_t i = 0; i < sample.labels.pixels.size(); ++i) {
    const Label label = sample.labels.pixels[i];
    if (label == ignored_) continue;
    ++confusion[label * classes_ + prediction.classes.pixels[i]];
    image.loss += negative_log(prediction.probabilities[i * classes_ + label]);
  }
  const auto top = likeliest({prediction.probabilities.data(), classes_});
  image.in_top5 = std::any_of(top.begin(), top.end(), [&](const ClassScore& score) {
    return score.label == sample.labels.pixels.front();
  });
  add(confusion);
}

void AugmentedEvaluation::add(const std::vector<std::int64_t>& confusion) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < confusion.size(); ++i) confusion_[i] += confusion[i];
}

// Losses are added in the order of the images, whichever was done first.
Evaluation AugmentedEvaluation::result() const {
  Evaluation evaluation;
  evaluation.task = store_.task();
  evaluation.metrics = confusion_metrics(confusion_, static_cast<int>(classes_));
  evaluation.images = store_.size();
  evaluation.confusion = confusion_;
  double loss = 0;
  std::int64_t labels = 0, top5 = 0;
  TileMismatch mismatch;
  for (const ImageScore& image : images_) {
    mismatch += image.mismatch;
    loss += image.loss;
    labels += image.labels;
    top5 += image.in_top5 ? 1 : 0;
  }
  if (in_windows_) evaluation.mismatch = mismatch;
  if (labels > 0) evaluation.loss = loss / static_cast<double>(labels);
  if (evaluation.task == Task::kClassification) evaluation.top5 = percent(top5, labels);
  return evaluation;
}

}  // namespace

Evaluation evaluate_augmented(const TrainedModel& model, const TestTimeAugmentation& augmentation,
                              const std::vector<Device>& devices,
                              std::vector<std::string>& warnings) {
  const auto start = std::chrono::steady_clock::now();
  AugmentedEvaluation work(model, augmentation, devices);
  warn_of_skipped(work.dataset(), warnings);
  work.run();
  Evaluation evaluation = work.result();
  evaluation.eval_stats = model.config.bn.eval_stats;
  evaluation.seconds = seconds_since(start);
  return evaluation;
}

}  // namespace lockstep
