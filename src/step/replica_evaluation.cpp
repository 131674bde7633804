// A replica's share of an evaluation: whole images, each with the replica's own statistics. No
// replica waits for another.

#include <cmath>
#include <numeric>
#include <span>

#include "backend/operand_checks.h"
#include "nn/argmax.h"
#include "step/replica.h"

namespace lockstep {
namespace {

/// fp32 memory on the way into a network that takes another type; empty where it takes fp32.
Storage allocate_staging(Backend& backend, const Tensor& input) {
  if (input.dtype == DType::kFloat32) return {};
  return backend.allocate(static_cast<std::size_t>(input.shape.elements()) * sizeof(float));
}

void upload_images(Backend& backend, const Batch& batch, const Storage& staging,
                   const Tensor& input) {
  if (!staging.data()) return backend.upload(input, batch.images.data());
  const Tensor staged(staging.data(), input.shape);
  backend.upload(staged, batch.images.data());
  backend.copy(staged, input, false);
}

// Images may differ in size; other inputs are as planned for training.
Shape input_of(const Batch& batch, const Shape& planned) {
  if (planned.rank() != 4 || batch.size == Size{}) return planned.with_batch(batch.count());
  return {batch.count(), batch.size.height, batch.size.width, planned.channels()};
}

// A class per sample: logits [N, classes].
bool is_of_samples(const LossNode& loss, const Tensor& output) {
  return loss.cross_entropy() != nullptr && output.shape.rank() == 2;
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

Tensor Replica::confusion_tensor() const {
  return bytes_tensor(confusion_.data(), confusion_.bytes());
}

void Replica::begin_evaluation() {
  if (confusion_.data() != nullptr) backend_->fill(confusion_tensor(), 0);
}

void Replica::prepare_evaluation(const Batch& batch) {
  const Shape input = input_of(batch, options_.input);
  const bool fits = eval_network_ != nullptr && eval_network_->planned_batch() >= input.batch() &&
                    eval_network_->input().shape.with_batch(input.batch()) == input;
  if (!fits) {
    const LossNode& loss = losses_.front();
    eval_network_.reset();  // first, so that two plans never lie in memory together
    eval_network_ = build_network(
        options_.model, options_.norm, input,
        {.training = false, .activations = options_.activations, .outputs = {loss.output()}},
        *backend_, store_);
    eval_images_ = allocate_staging(*backend_, eval_network_->input());
    eval_target_ = backend_->allocate(dense_bytes(loss.target(*eval_network_, nullptr)));
    const Tensor& output = eval_network_->output(loss.output_index());
    eval_logits_ =
        is_of_samples(loss, output)
            ? backend_->allocate(static_cast<std::size_t>(output.shape.elements()) * sizeof(float))
            : Storage{};
  }
  eval_network_->set_batch(batch.count());
}

EvalOutcome Replica::evaluate(const Batch& batch) {
  communicator_.enter("evaluation", "the network");
  prepare_evaluation(batch);
  const LossNode& loss = losses_.front();
  const Network& network = *eval_network_;
  const Tensor target = loss.target(network, eval_target_.data());
  upload_images(*backend_, batch, eval_images_, network.input());
  backend_->upload(target, targets_of(batch, 0, loss, target.shape));
  eval_network_->forward({.training = false, .communicator = &communicator_});

  if (loss.cross_entropy() != nullptr) {
    backend_->confusion_matrix(network.output(loss.output_index()), target,
                               static_cast<std::int64_t*>(confusion_.data()));
  }
  backend_->fill(sums_tensor(), 0);
  loss.evaluate(network, target, sums().losses.data());
  StepSums read;
  backend_->download(&read, bytes_tensor(sums_.data(), sizeof(StepSums)));
  download_logits(network.output(loss.output_index()));
  backend_->synchronize();
  return {read.losses[0], count_terms(batch, loss, target.shape), count_top5(batch)};
}

std::vector<std::int32_t> Replica::predict(const Batch& batch) {
  communicator_.enter("prediction", "the network");
  prepare_evaluation(batch);
  upload_images(*backend_, batch, eval_images_, eval_network_->input());
  eval_network_->forward({.training = false, .communicator = &communicator_});
  const Tensor& output = eval_network_->output(losses_.front().output_index());
  std::vector<float> values(static_cast<std::size_t>(output.shape.elements()));
  const Storage memory = backend_->allocate(values.size() * sizeof(float));
  const Tensor logits(memory.data(), output.shape);
  backend_->copy(output, logits, false);
  backend_->download(values.data(), logits);
  backend_->synchronize();
  std::vector<std::int32_t> classes;
  argmax_rows(values, output.shape.channels(), classes);
  return classes;
}

// Where they are of whole samples.
void Replica::download_logits(const Tensor& output) {
  logits_.clear();
  if (!is_of_samples(losses_.front(), output)) return;
  const Tensor logits(eval_logits_.data(), output.shape);
  backend_->copy(output, logits, false);
  logits_.resize(static_cast<std::size_t>(output.shape.elements()));
  backend_->download(logits_.data(), logits);
}

std::int64_t Replica::count_top5(const Batch& batch) const {
  const auto classes = static_cast<std::size_t>(losses_.front().classes());
  std::int64_t count = 0;
  for (std::size_t i = 0; i * classes < logits_.size(); ++i) {
    const std::span<const float> logits(logits_.data() + i * classes, classes);
    // What is no class is ignored: the loss has seen to that.
    if (batch.labels[i] < classes && is_among_five(logits, batch.labels[i])) ++count;
  }
  return count;
}

// Labels that are valid, or values.
std::int64_t Replica::count_terms(const Batch& batch, const LossNode& loss, const Shape& target) {
  if (loss.cross_entropy() == nullptr) return target.elements();
  label_counts_.assign(static_cast<std::size_t>(loss.classes()), 0);
  add_label_counts(batch, static_cast<std::size_t>(target.rows_per_sample()),
                   loss.cross_entropy()->ignore_index, label_counts_);
  return std::accumulate(label_counts_.begin(), label_counts_.end(), std::int64_t{0});
}

std::vector<std::int64_t> Replica::end_evaluation() {
  backend_->fill(sums_tensor(), 0);  // a training step keeps what is not finite there
  std::vector<std::int64_t> confusion(confusion_.bytes() / sizeof(std::int64_t));
  if (confusion.empty()) return confusion;
  backend_->download(confusion.data(), confusion_tensor());
  backend_->synchronize();
  return confusion;
}

}  // namespace lockstep
