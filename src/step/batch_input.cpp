#include "step/batch_input.h"

#include <algorithm>
#include <cmath>

#include "backend/operands.h"
#include "lockstep/core/check.h"
#include "nn/image_layout.h"

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
  if (loss.takes_labels()) {
    return check_count("labels", loss, batch.label_values().size(), batch.count(), shape);
  }
  const auto found = batch.targets.find(loss.output());
  LOCKSTEP_CHECK(found != batch.targets.end(), "the batch has no targets for output '",
                 loss.output(), "'; Batch::targets[\"", loss.output(), "\"] takes ",
                 elements_per_sample(shape), " values per sample");
  check_count("targets", loss, found->second.size(), batch.count(), shape);
}

void check_weights(const Batch& batch) {
  const auto samples = static_cast<std::size_t>(batch.count());
  LOCKSTEP_CHECK(!batch.own_places_only, "a batch of own places only has no sample_weights; give ",
                 "every process the whole batch");
  LOCKSTEP_CHECK(batch.sample_weights.size() == samples,
                 "the batch's sample_weights do not fit its count: expected ", samples, ", got ",
                 batch.sample_weights.size(),
                 "; leave the option sample_weights out if all weigh 1");
  for (const float weight : batch.sample_weights) {
    LOCKSTEP_CHECK(weight >= 0 && std::isfinite(weight),
                   "the weight of a sample must be a number of at least 0, is ", weight);
  }
}

bool look_alike(const LossNode& a, const LossNode& b) {
  if (a.takes_labels() != b.takes_labels()) return false;
  return a.takes_labels() || a.output() == b.output();
}

}  // namespace

BatchInput::BatchInput(LossNodes losses, Network& network, const DataParallelOptions& options)
    : losses_(losses),
      network_(network),
      backend_(network.backend()),
      planned_(network.input().shape),
      weighted_(options.sample_weights) {
  const bool ahead = backend_.asynchronous();
  const auto micro_batches = ahead ? static_cast<std::size_t>(options.micro_batches()) : 0;
  if (ahead) {
    prefetched_images_ = backend_.allocate(micro_batches * sizeof(float) *
                                           static_cast<std::size_t>(planned_.elements()));
  }
  for (const auto& loss : losses) find_place(*loss, micro_batches);
  if (weighted_) places_.push_back(make_place(nullptr, micro_batches));
}

void BatchInput::find_place(const LossNode& loss, std::size_t micro_batches) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const LossNode& other = *places_[i].loss;
    if (!look_alike(loss, other)) continue;
    check_same_labels(loss, loss.target(network_, nullptr).shape, other,
                      other.target(network_, nullptr).shape);
    return place_of_.push_back(i);
  }
  place_of_.push_back(places_.size());
  places_.push_back(make_place(&loss, micro_batches));
}

BatchInput::Place BatchInput::make_place(const LossNode* loss, std::size_t micro_batches) const {
  Place place{loss};
  const std::size_t bytes = dense_bytes(in_place(place, nullptr));
  place.memory = backend_.allocate(bytes);
  if (micro_batches > 0) place.prefetched = backend_.allocate(micro_batches * bytes);
  return place;
}

Tensor BatchInput::in_place(const Place& place, void* memory) const {
  if (place.loss != nullptr) return place.loss->target(network_, memory);
  return {memory, Shape{network_.input().shape.batch(), 1}};
}

const float* BatchInput::images_of(const BatchPart& part) {
  const Batch& batch = *part.batch;
  const float* images = batch.image_values().data() + part.begin * elements_per_sample(planned_);
  return channels_last(images, planned_.with_batch(part.count), batch.layout, reordered_);
}

Tensor BatchInput::prefetched_images(std::int64_t count, std::size_t micro) const {
  float* memory = static_cast<float*>(prefetched_images_.data()) +
                  static_cast<std::int64_t>(micro) * planned_.elements();
  return {memory, planned_.with_batch(count)};
}

Tensor BatchInput::prefetched_target(const Place& place, std::int64_t count,
                                     std::size_t micro) const {
  Tensor target = in_place(place, nullptr);
  target.shape = target.shape.with_batch(planned_.batch());
  target.data = static_cast<std::byte*>(place.prefetched.data()) + micro * dense_bytes(target);
  target.shape = target.shape.with_batch(count);
  return target;
}

const void* BatchInput::source_of(const BatchPart& part, const Place& place) const {
  if (place.loss == nullptr) return part.batch->sample_weights.data() + part.begin;
  return targets_of(*part.batch, part.begin, *place.loss, in_place(place, nullptr).shape);
}

void BatchInput::prefetch(const BatchPart& part, std::size_t micro) {
  if (part.count == 0) return;
  backend_.stage(prefetched_images(part.count, micro), images_of(part));
  for (const Place& place : places_)
    backend_.stage(prefetched_target(place, part.count, micro), source_of(part, place));
}

void BatchInput::bring(const BatchPart& part, const Place& place, std::size_t micro) {
  const Tensor target = in_place(place, place.memory.data());
  if (prefetches()) {
    backend_.take_staged(prefetched_target(place, part.count, micro), target);
  } else {
    backend_.upload(target, source_of(part, place));
  }
}

void BatchInput::load(const BatchPart& part, std::size_t micro, bool prefetched) {
  network_.set_batch(part.count);
  if (part.count == 0) return;
  if (prefetches()) {
    if (!prefetched) prefetch(part, micro);
    backend_.take_staged(prefetched_images(part.count, micro), network_.input());
  } else {  // memory of the CPU is the host's: a copy also converts
    const Tensor images(const_cast<float*>(images_of(part)), network_.input().shape);
    backend_.copy(images, network_.input(), false);
  }
  for (const Place& place : places_) bring(part, place, micro);
}

Tensor BatchInput::target(std::size_t loss) const {
  return losses_[loss]->target(network_, places_[place_of_[loss]].memory.data());
}

void BatchInput::check(const Batch& batch) const {
  for (const auto& loss : losses_) {
    check_targets(batch, *loss, loss->target(network_, nullptr).shape);
  }
  for (const auto& [name, values] : batch.targets) {
    const bool known = std::any_of(losses_.begin(), losses_.end(),
                                   [&](const auto& loss) { return loss->output() == name; });
    LOCKSTEP_CHECK(known, "Batch::targets has '", name, "' (", values.size(),
                   " values), but no loss is at an output of that name");
  }
  if (weighted_) return check_weights(batch);
  LOCKSTEP_CHECK(batch.sample_weights.empty(), "the batch has sample_weights, which count with ",
                 "the option sample_weights = true");
}

double BatchInput::normalizer(std::size_t loss, std::span<const Batch> batches) {
  const LossNode& node = *losses_[loss];
  const Shape shape = node.target(network_, nullptr).shape;
  LossCounts counts;
  label_counts_.assign(node.takes_labels() ? static_cast<std::size_t>(node.classes()) : 0, 0);
  for (const Batch& batch : batches) {
    if (node.takes_labels()) {
      add_label_counts(batch, static_cast<std::size_t>(shape.rows_per_sample()),
                       node.ignore_index(), label_counts_, weighted_);
    }
    if (!weighted_) counts.samples += static_cast<double>(batch.count());
    for (const float weight : batch.sample_weights) counts.samples += static_cast<double>(weight);
  }
  counts.labels = label_counts_;
  counts.elements = counts.samples * static_cast<double>(shape.rows_per_sample() * node.classes());
  return node.normalizer(counts);
}

const void* targets_of(const Batch& batch, std::int64_t begin, const LossNode& loss,
                       const Shape& shape) {
  check_targets(batch, loss, shape);
  const std::int64_t offset = begin * elements_per_sample(shape);
  if (loss.takes_labels()) return batch.label_values().data() + offset;
  return batch.targets.at(loss.output()).data() + offset;
}

namespace {

void add_labels(std::span<const Label> labels, int ignore_index, double weight,
                std::span<double> counts) {
  for (const Label label : labels) {
    if (label == ignore_index) continue;
    LOCKSTEP_CHECK(label < counts.size(), "a label is ", int{label}, ", but there are ",
                   counts.size(), " classes; what does not count is ", ignore_index);
    counts[label] += weight;
  }
}

void check_known(std::span<const std::int64_t> known, std::size_t classes, std::size_t labels) {
  LOCKSTEP_CHECK(known.size() == classes, "expected label counts of ", classes, " classes, got ",
                 known.size());
  std::int64_t counted = 0;
  for (std::size_t c = 0; c < known.size(); ++c) {
    LOCKSTEP_CHECK(known[c] >= 0, "Batch::class_pixels counts ", known[c], " labels of class ", c);
    counted += known[c];
  }
  LOCKSTEP_CHECK(counted <= static_cast<std::int64_t>(labels), "Batch::class_pixels counts ",
                 counted, " labels, and the batch has ", labels);
}

}  // namespace

void add_label_counts(const Batch& batch, std::size_t positions, int ignore_index,
                      std::span<double> counts, bool sample_weights) {
  const std::vector<std::int64_t>& known = batch.class_pixels;
  const auto samples = static_cast<std::size_t>(batch.count());
  if (!known.empty()) check_known(known, counts.size(), samples * positions);
  if (!known.empty() && !sample_weights) {
    for (std::size_t c = 0; c < known.size(); ++c) counts[c] += static_cast<double>(known[c]);
    return;
  }
  const std::span<const Label> labels = batch.label_values();
  for (std::size_t n = 0; n < samples; ++n) {
    add_labels(labels.subspan(n * positions, positions), ignore_index,
               sample_weights ? static_cast<double>(batch.sample_weights[n]) : 1.0, counts);
  }
}

}  // namespace lockstep
