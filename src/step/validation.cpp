#include "step/validation.h"

#include <algorithm>
#include <cmath>

#include "backend/operands.h"
#include "core/profiler.h"
#include "nn/argmax.h"
#include "nn/image_layout.h"
#include "step/batch_input.h"
#include "step/step_totals.h"

namespace lockstep {
namespace {

// Images may differ in size; other inputs are as planned for training.
Shape input_of(const Batch& batch, const Shape& planned) {
  if (planned.rank() != 4 || batch.size == Size{}) return planned.with_batch(batch.count());
  return {batch.count(), batch.size.height, batch.size.width, planned.channels()};
}

// Whether at most four classes come before the label's in order of their logits, the first of equal
// ones first, as in a prediction.
bool is_among_five(std::span<const float> logits, Label label) {
  const float own = logits[label];
  if (std::isnan(own)) return false;
  int before = 0;
  for (std::size_t c = 0; c < logits.size(); ++c) {
    before += logits[c] > own || (logits[c] == own && c < label) ? 1 : 0;
  }
  return before < 5;
}

}  // namespace

Validation::Validation(const DataParallelOptions& options, Communicator& communicator,
                       Backend& backend, ParameterStore& store, LossNode& loss)
    : planned_(options.input),
      communicator_(communicator),
      backend_(backend),
      loss_(loss),
      ways_(ways_of(options, communicator, backend, store)),
      sum_(backend.allocate(sizeof(double))) {
  if (!loss_.takes_labels()) return;
  const auto classes = static_cast<std::size_t>(loss_.classes());
  confusion_ = backend_.allocate(classes * classes * sizeof(std::int64_t));
}

std::array<Validation::Way, 3> Validation::ways_of(const DataParallelOptions& options,
                                                   Communicator& communicator, Backend& backend,
                                                   ParameterStore& store) const {
  const auto way = [&](Model model) {
    return Way{Forward({.model = std::move(model),
                        .norm = options.norm,
                        .output = loss_.output(),
                        .activations = options.precision,
                        .communicator = communicator},
                       backend, store),
               {}};
  };
  return {way(options.model), way(normalize_by_batch(options.model)),
          way(normalize_by_image(options.model))};
}

Tensor Validation::confusion_tensor() const {
  return bytes_tensor(confusion_.data(), confusion_.bytes());
}

Tensor Validation::sum_tensor() const { return bytes_tensor(sum_.data(), sizeof(double)); }

void Validation::begin() {
  if (confusion_.data() != nullptr) backend_.fill(confusion_tensor(), 0);
  window_confusion_.assign(confusion_.bytes() / sizeof(std::int64_t), 0);
}

void Validation::check_images(const Batch& batch, const Shape& input) {
  LOCKSTEP_CHECK(batch.count() > 0, "a batch to evaluate is empty; it needs at least one sample ",
                 "(Batch::samples counts them)");
  LOCKSTEP_CHECK(static_cast<std::int64_t>(batch.image_values().size()) == input.elements(),
                 "expected ", input.elements(), " values of images for the ", batch.count(),
                 " samples of an input ", to_string(input), ", got ", batch.image_values().size());
}

void Validation::prepare(const Batch& batch, EvalNormalizer by) {
  Way* const way = &way_of(by);
  if (way != present_) {  // two ways never lie in memory together
    present_->forward.release();
    present_->target = {};
  }
  present_ = way;
  const Shape input = input_of(batch, planned_);
  check_images(batch, input);
  if (!present_->forward.prepare(input)) return;
  present_->target = backend_.allocate(dense_bytes(loss_.target(network(), nullptr)));
}

const Tensor& Validation::run(const Batch& batch) {
  return present_->forward.run(channels_last(batch.image_values().data(), input_of(batch, planned_),
                                             batch.layout, reordered_));
}

// A class per sample: logits [N, classes].
bool Validation::is_of_samples(const Tensor& output) const {
  return loss_.takes_labels() && output.shape.rank() == 2;
}

EvalOutcome Validation::evaluate(const Batch& batch, const EvaluationOptions& options) {
  const ProfiledRange range("evaluation", batch.count());
  communicator_.enter("evaluation", "the network");
  if (options.windows.any()) return evaluate_windows(batch, options);
  prepare(batch, options.by);
  const Tensor target = loss_.target(network(), present_->target.data());
  backend_.upload(target, targets_of(batch, 0, loss_, target.shape));
  const Tensor& output = run(batch);
  if (loss_.takes_labels()) {
    backend_.losses().confusion_matrix(output, target,
                                       static_cast<std::int64_t*>(confusion_.data()));
  }
  backend_.fill(sum_tensor(), 0);
  loss_.evaluate({.output = output, .target = target, .loss = static_cast<double*>(sum_.data())});
  EvalOutcome outcome;
  backend_.download(&outcome.loss, sum_tensor());
  if (is_of_samples(output)) outcome.top5 = count_top5(batch, read_logits());
  outcome.terms = count_terms(batch, target.shape);
  backend_.synchronize();
  return outcome;
}

std::vector<std::int32_t> Validation::predict(const Batch& batch,
                                              const EvaluationOptions& options) {
  communicator_.enter("prediction", "the network");
  if (options.windows.any()) return predict_windows(batch, options);
  prepare(batch, options.by);
  const std::int64_t channels = run(batch).shape.channels();
  std::vector<std::int32_t> classes;
  argmax_rows(read_logits(), channels, classes);
  return classes;
}

std::int64_t Validation::count_top5(const Batch& batch, std::span<const float> logits) const {
  const auto classes = static_cast<std::size_t>(loss_.classes());
  const std::span<const Label> labels = batch.label_values();
  std::int64_t count = 0;
  for (std::size_t i = 0; i * classes < logits.size(); ++i) {
    // What is no class is ignored: the loss has seen to that.
    const bool counts = labels[i] < classes && labels[i] != loss_.ignore_index();
    if (counts && is_among_five(logits.subspan(i * classes, classes), labels[i])) {
      ++count;
    }
  }
  return count;
}

std::int64_t Validation::count_terms(const Batch& batch, const Shape& target) {
  const auto rows = static_cast<std::size_t>(target.rows_per_sample());
  label_counts_.assign(loss_.takes_labels() ? static_cast<std::size_t>(loss_.classes()) : 0, 0);
  if (loss_.takes_labels()) add_label_counts(batch, rows, loss_.ignore_index(), label_counts_);
  return static_cast<std::int64_t>(
      loss_.terms({.labels = label_counts_,
                   .samples = static_cast<double>(batch.count()),
                   .elements = static_cast<double>(target.elements())}));
}

std::vector<std::int64_t> Validation::end() {
  std::vector<std::int64_t> confusion(confusion_.bytes() / sizeof(std::int64_t));
  if (confusion.empty()) return confusion;
  backend_.download(confusion.data(), confusion_tensor());
  backend_.synchronize();
  // A class that is ignored is counted on the device like the others, in a row of its own.
  const std::int64_t classes = loss_.classes(), ignored = loss_.ignore_index();
  if (0 <= ignored && ignored < classes) {
    std::fill_n(confusion.begin() + ignored * classes, classes, 0);
  }
  for (std::size_t i = 0; i < confusion.size(); ++i) confusion[i] += window_confusion_[i];
  return confusion;
}

}  // namespace lockstep
