// Validation of images in windows.

#include <memory>

#include "data/window_merge.h"
#include "lockstep/core/check.h"
#include "nn/argmax.h"
#include "nn/image_layout.h"
#include "step/validation.h"

namespace lockstep {
namespace {

std::size_t area(int height, int width) {
  return static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
}

/// The same window of all images of a batch, what fills them up included.
/// `images`: [N, size, channels].
Batch window_of(const Batch& batch, const float* images, std::int64_t channels,
                const WindowPlace& place, Size window) {
  Batch piece;
  piece.samples = batch.samples;
  piece.size = window;
  const auto values = static_cast<std::size_t>(channels);
  for (std::size_t n = 0; n < batch.samples.size(); ++n) {
    for (int y = 0; y < window.height; ++y) {
      const std::size_t pixel = n * area(batch.size.height, batch.size.width) +
                                area(place.y + y, batch.size.width) +
                                static_cast<std::size_t>(place.x);
      const float* const row = images + pixel * values;
      piece.images.insert(piece.images.end(), row, row + area(1, window.width) * values);
    }
  }
  return piece;
}

/// Rows of logits [rows, classes] become probabilities.
void to_probabilities(std::span<const float> logits, std::size_t classes,
                      std::vector<float>& probabilities) {
  probabilities.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); i += classes) {
    softmax(logits.subspan(i, classes), probabilities.data() + i);
  }
}

Size image_of(const Batch& batch) { return batch.image == Size{} ? batch.size : batch.image; }

}  // namespace

TileMismatch Validation::run_windows(const Batch& batch, const EvaluationOptions& options,
                                     const SampleRows& rows) {
  LOCKSTEP_CHECK(
      planned_.rank() == 4 && batch.size != Size{} && loss_.takes_labels(),
      "windows are of images whose pixels have labels; leave EvaluationOptions::windows ", "out");
  const WindowGrid grid(image_of(batch), options.windows);
  const Size end = grid.end();
  LOCKSTEP_CHECK(end.height <= batch.size.height && end.width <= batch.size.width, "images of ",
                 to_string(batch.size), " in windows up to ", to_string(end),
                 ": fill them up to multiples of the divisor ", options.windows.divisor);
  const std::int64_t channels = planned_.channels();
  const Shape whole{batch.count(), batch.size.height, batch.size.width, channels};
  check_images(batch, whole);
  std::vector<float> reordered, probabilities;
  const float* const images =
      channels_last(batch.image_values().data(), whole, batch.layout, reordered);
  std::vector<std::unique_ptr<WindowMerge>> merges;
  for (std::size_t n = 0; n < batch.samples.size(); ++n) {
    merges.push_back(std::make_unique<WindowMerge>(
        grid, loss_.classes(), options.windows.blend, true,
        [&rows, n](int first, int, std::span<const float> values) { rows(n, first, values); }));
  }
  for (int row = 0; row < grid.rows(); ++row) {
    for (int column = 0; column < grid.columns(); ++column) {
      const Batch piece = window_of(batch, images, channels, grid.at(row, column), grid.window());
      prepare(piece, options.by);
      run(piece);
      const auto classes = static_cast<std::size_t>(loss_.classes());
      to_probabilities(read_logits(), classes, probabilities);
      const std::size_t each = probabilities.size() / merges.size();
      for (std::size_t n = 0; n < merges.size(); ++n) {
        merges[n]->add(std::span(probabilities).subspan(n * each, each), grid.window().width);
      }
    }
  }
  TileMismatch mismatch;
  for (const auto& merge : merges) mismatch += merge->mismatch();
  return mismatch;
}

EvalOutcome Validation::evaluate_windows(const Batch& batch, const EvaluationOptions& options) {
  const auto classes = static_cast<std::size_t>(loss_.classes());
  const auto width = static_cast<std::size_t>(image_of(batch).width);
  const std::span<const Label> labels = batch.label_values();
  const std::size_t each = area(batch.size.height, batch.size.width);
  LOCKSTEP_CHECK(labels.size() == each * batch.samples.size(), "expected ", each,
                 " labels for each of ", batch.count(), " images, got ", labels.size());
  EvalOutcome outcome;
  std::vector<std::int32_t> predicted;
  const auto score = [&](std::size_t sample, int first, std::span<const float> probabilities) {
    argmax_rows(probabilities, loss_.classes(), predicted);
    for (std::size_t i = 0; i < predicted.size(); ++i) {
      const std::size_t row = static_cast<std::size_t>(first) + i / width;
      const Label label =
          labels[sample * each + row * static_cast<std::size_t>(batch.size.width) + i % width];
      if (label == loss_.ignore_index()) continue;
      LOCKSTEP_CHECK(label < classes, "a label is ", int{label}, ", but there are ", classes,
                     " classes; what does not count is ", loss_.ignore_index());
      ++window_confusion_[label * classes + static_cast<std::size_t>(predicted[i])];
      outcome.loss += negative_log(probabilities[i * classes + label]);
      ++outcome.terms;
    }
  };
  outcome.mismatch = run_windows(batch, options, score);
  return outcome;
}

std::vector<std::int32_t> Validation::predict_windows(const Batch& batch,
                                                      const EvaluationOptions& options) {
  const auto width = static_cast<std::size_t>(image_of(batch).width);
  const auto stride = static_cast<std::size_t>(batch.size.width);
  const std::size_t each = area(batch.size.height, batch.size.width);
  std::vector<std::int32_t> classes(each * batch.samples.size()), predicted;
  run_windows(batch, options,
              [&](std::size_t sample, int first, std::span<const float> probabilities) {
                argmax_rows(probabilities, loss_.classes(), predicted);
                for (std::size_t i = 0; i < predicted.size(); ++i) {
                  const std::size_t row = static_cast<std::size_t>(first) + i / width;
                  classes[sample * each + row * stride + i % width] = predicted[i];
                }
              });
  return classes;
}

}  // namespace lockstep
