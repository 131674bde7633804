#include "step/batch_input.h"

#include <algorithm>

#include "backend/operand_checks.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

std::int64_t elements_per_sample(const Shape& shape) {
  return shape.rows_per_sample() * shape.channels();
}

void check_same_labels(const LossNode& loss, const Shape& shape, const LossNode& other,
                       const Shape& others) {
  LOCKSTEP_CHECK(shape == others, "the labels of output '", loss.output(), "' have the shape ",
                 to_string(shape), ", those of '", other.output(), "' ", to_string(others),
                 "; bring both outputs to one size");
}

void check_count(const char* what, const LossNode& loss, std::size_t values, std::int64_t samples,
                 const Shape& shape) {
  const std::int64_t each = elements_per_sample(shape);
  const auto expected = static_cast<std::size_t>(samples * each);
  LOCKSTEP_CHECK(values == expected, "the batch's ", what, " for output '", loss.output(),
                 "' do not fit its count: expected ", each, " per sample, got ", values, " for ",
                 samples);
}

void check_targets(const Batch& batch, const LossNode& loss, const Shape& shape) {
  if (loss.cross_entropy() != nullptr) {
    return check_count("labels", loss, batch.labels.size(), batch.count(), shape);
  }
  const auto found = batch.targets.find(loss.output());
  LOCKSTEP_CHECK(found != batch.targets.end(), "the batch has no targets for output '",
                 loss.output(), "'; Batch::targets[\"", loss.output(), "\"] takes ",
                 elements_per_sample(shape), " values per sample");
  check_count("targets", loss, found->second.size(), batch.count(), shape);
}

}  // namespace

BatchInput::BatchInput(std::span<const LossNode> losses, Network& network,
                       std::size_t micro_batches)
    : losses_(losses),
      network_(network),
      backend_(network.backend()),
      planned_(network.input().shape) {
  const bool ahead = backend_.asynchronous();
  if (ahead) {
    prefetched_images_ = backend_.allocate(micro_batches * sizeof(float) *
                                           static_cast<std::size_t>(planned_.elements()));
  }
  for (const LossNode& loss : losses) find_place(loss, ahead ? micro_batches : 0);
}

void BatchInput::find_place(const LossNode& loss, std::size_t micro_batches) {
  const Tensor target = loss.target(network_, nullptr);
  if (loss.cross_entropy() != nullptr) {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const LossNode& other = *places_[i].loss;
      if (other.cross_entropy() == nullptr) continue;
      check_same_labels(loss, target.shape, other, other.target(network_, nullptr).shape);
      return place_of_.push_back(i);
    }
  }
  const std::size_t bytes = dense_bytes(target);
  place_of_.push_back(places_.size());
  places_.push_back({&loss, backend_.allocate(bytes), {}});
  if (micro_batches > 0) places_.back().prefetched = backend_.allocate(micro_batches * bytes);
}

const float* BatchInput::images_of(const BatchPart& part) const {
  return part.batch->images.data() + part.begin * elements_per_sample(planned_);
}

Tensor BatchInput::prefetched_images(std::int64_t count, std::size_t micro) const {
  float* memory = static_cast<float*>(prefetched_images_.data()) +
                  static_cast<std::int64_t>(micro) * planned_.elements();
  return {memory, planned_.with_batch(count)};
}

Tensor BatchInput::prefetched_target(const Place& place, std::int64_t count,
                                     std::size_t micro) const {
  Tensor target = place.loss->target(network_, nullptr);
  target.shape = target.shape.with_batch(planned_.batch());
  target.data = static_cast<std::byte*>(place.prefetched.data()) + micro * dense_bytes(target);
  target.shape = target.shape.with_batch(count);
  return target;
}

void BatchInput::prefetch(const BatchPart& part, std::size_t micro) {
  if (part.count == 0) return;
  backend_.stage(prefetched_images(part.count, micro), images_of(part));
  for (const Place& place : places_) {
    const Tensor target = prefetched_target(place, part.count, micro);
    backend_.stage(target, targets_of(*part.batch, part.begin, *place.loss, target.shape));
  }
}

void BatchInput::load(const BatchPart& part, std::size_t micro, bool prefetched) {
  network_.set_batch(part.count);
  if (part.count == 0) return;
  if (prefetches()) {
    if (!prefetched) prefetch(part, micro);
    backend_.take_staged(prefetched_images(part.count, micro), network_.input());
  } else {
    backend_.upload(network_.input(), images_of(part));
  }
  for (const Place& place : places_) {
    const Tensor target = place.loss->target(network_, place.memory.data());
    if (prefetches()) {
      backend_.take_staged(prefetched_target(place, part.count, micro), target);
    } else {
      backend_.upload(target, targets_of(*part.batch, part.begin, *place.loss, target.shape));
    }
  }
}

Tensor BatchInput::target(std::size_t loss) const {
  return losses_[loss].target(network_, places_[place_of_[loss]].memory.data());
}

void BatchInput::check(const Batch& batch) const {
  for (const LossNode& loss : losses_) {
    check_targets(batch, loss, loss.target(network_, nullptr).shape);
  }
  for (const auto& [name, values] : batch.targets) {
    const bool known = std::any_of(losses_.begin(), losses_.end(), [&](const LossNode& loss) {
      return loss.cross_entropy() == nullptr && loss.output() == name;
    });
    LOCKSTEP_CHECK(known, "Batch::targets has '", name, "' (", values.size(),
                   " values), but no loss that takes targets is at an output of that name");
  }
}

double BatchInput::normalizer(std::size_t loss, std::span<const Batch> batches) {
  const LossNode& node = losses_[loss];
  const Shape shape = node.target(network_, nullptr).shape;
  if (const CrossEntropyLoss* cross_entropy = node.cross_entropy()) {
    label_counts_.assign(static_cast<std::size_t>(node.classes()), 0);
    for (const Batch& batch : batches) {
      add_label_counts(batch, static_cast<std::size_t>(shape.rows_per_sample()),
                       cross_entropy->ignore_index, label_counts_);
    }
    return loss_normalizer(*cross_entropy, label_counts_);
  }
  std::int64_t samples = 0;
  for (const Batch& batch : batches) samples += batch.count();
  return loss_normalizer(std::get<MeanSquaredErrorLoss>(node.loss()),
                         samples * elements_per_sample(shape));
}

const void* targets_of(const Batch& batch, std::int64_t begin, const LossNode& loss,
                       const Shape& shape) {
  check_targets(batch, loss, shape);
  const std::int64_t offset = begin * elements_per_sample(shape);
  if (loss.cross_entropy() != nullptr) return batch.labels.data() + offset;
  return batch.targets.at(loss.output()).data() + offset;
}

void add_label_counts(const Batch& batch, std::size_t positions, int ignore_index,
                      std::span<std::int64_t> counts) {
  LOCKSTEP_CHECK(batch.class_pixels.empty() || batch.class_pixels.size() == counts.size(),
                 "expected label counts of ", counts.size(), " classes, got ",
                 batch.class_pixels.size());
  const std::size_t labels = static_cast<std::size_t>(batch.count()) * positions;
  std::int64_t counted = 0;
  for (std::size_t c = 0; c < batch.class_pixels.size(); ++c) {
    LOCKSTEP_CHECK(batch.class_pixels[c] >= 0, "Batch::class_pixels counts ", batch.class_pixels[c],
                   " labels of class ", c);
    counts[c] += batch.class_pixels[c];
    counted += batch.class_pixels[c];
  }
  LOCKSTEP_CHECK(counted <= static_cast<std::int64_t>(labels), "Batch::class_pixels counts ",
                 counted, " labels, and the batch has ", labels);
  if (!batch.class_pixels.empty()) return;
  for (std::size_t i = 0; i < labels; ++i) {
    const Label label = batch.labels[i];
    if (label == ignore_index) continue;
    LOCKSTEP_CHECK(label < counts.size(), "a label is ", int{label}, ", but there are ",
                   counts.size(), " classes; what does not count is ", ignore_index);
    ++counts[label];
  }
}

}  // namespace lockstep
