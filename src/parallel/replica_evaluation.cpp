// A replica's share of an evaluation: whole images, each with the replica's own statistics. No
// replica waits for another.

#include <numeric>

#include "parallel/replica.h"
#include "parallel/scatter.h"

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

}  // namespace

Tensor Replica::confusion_tensor() const {
  const std::int64_t classes = losses_.front().classes();
  return {confusion_.data(), Shape{1, 2 * classes * classes}};
}

void Replica::begin_evaluation() { backend_->fill(confusion_tensor(), 0); }

void Replica::prepare_evaluation(const Batch& batch) {
  const Shape input = input_of(batch, options_.input);
  const bool fits = eval_network_ != nullptr && eval_network_->planned_batch() >= input.batch() &&
                    eval_network_->input().shape.with_batch(input.batch()) == input;
  if (!fits) {
    eval_network_.reset();  // first, so that two plans never lie in memory together
    eval_network_ =
        build_network(options_.model, options_.norm, input,
                      {.training = false, .activations = options_.activations}, *backend_, store_);
    eval_images_ = allocate_staging(*backend_, eval_network_->input());
    const Tensor labels = losses_.front().labels(*eval_network_, nullptr);
    eval_labels_ = backend_->allocate(static_cast<std::size_t>(labels.shape.rows()));
  }
  eval_network_->set_batch(batch.count());
}

ImageOutcome Replica::evaluate(const Batch& batch) {
  communicator_.enter("evaluation", "the network");
  prepare_evaluation(batch);
  const LossNode& loss = losses_.front();
  const Network& network = *eval_network_;
  const Tensor labels = loss.labels(network, eval_labels_.data());
  upload_images(*backend_, batch, eval_images_, network.input());
  backend_->upload(labels, batch.labels.data());
  eval_network_->forward({.training = false});

  backend_->confusion_matrix(network.output(loss.output_index()), labels,
                             static_cast<std::int64_t*>(confusion_.data()));
  backend_->fill(sums_tensor(), 0);
  loss.evaluate(network, labels, sums().losses.data());
  StepSums read;
  backend_->download(&read, bytes_tensor(sums_.data(), sizeof(StepSums)));
  backend_->synchronize();
  label_counts_.assign(static_cast<std::size_t>(loss.classes()), 0);
  add_label_counts(batch, static_cast<std::size_t>(labels.shape.rows_per_sample()),
                   loss.ignore_index(), label_counts_);
  return {read.losses[0],
          std::accumulate(label_counts_.begin(), label_counts_.end(), std::int64_t{0})};
}

std::vector<std::int64_t> Replica::end_evaluation() {
  const auto classes = static_cast<std::size_t>(losses_.front().classes());
  std::vector<std::int64_t> confusion(classes * classes);
  backend_->download(confusion.data(), confusion_tensor());
  backend_->synchronize();
  return confusion;
}

}  // namespace lockstep
