// Evaluation: whole images spread over the ranks, each with its rank's own network; no rank waits
// for another.

#include <numeric>

#include "lockstep/core/check.h"
#include "parallel/data_parallel_impl.h"

namespace lockstep {

/// Sums of an evaluation. Every image and every rank has its own place: no order of arrival can
/// matter.
struct EvalSums {
  std::vector<double> loss;                          // [image] over its valid pixels
  std::vector<std::int64_t> pixels;                  // [image] valid ones
  std::vector<std::vector<std::int64_t>> confusion;  // [rank][classes * classes]
};

namespace {

/// fp32 memory on the way into a network that takes another type; empty where it takes fp32.
Storage allocate_staging(Backend& backend, const Tensor& input) {
  if (input.dtype == DType::kFloat32) return {};
  return backend.allocate(static_cast<std::size_t>(input.shape.elements()) * sizeof(float));
}

void upload_images(Backend& backend, const Batch& batch, const Storage& staging,
                   const Tensor& input) {
  if (!staging.data()) return backend.upload(input, batch.images.data());
  const Tensor staged = image_tensor(staging, batch.count(), batch.size);
  backend.upload(staged, batch.images.data());
  backend.copy(staged, input, false);
}

}  // namespace

void DataParallel::Impl::prepare_eval(int rank, const Batch& batch) {
  Replica& replica = replicas[rank];
  const Shape input{batch.count(), batch.size.height, batch.size.width, 3};
  Network* network = replica.eval_network.get();
  const bool fits = network != nullptr && network->planned_batch() >= input.batch() &&
                    network->input().shape.height() == input.height() &&
                    network->input().shape.width() == input.width();
  if (!fits) {
    replica.eval_network.reset();  // first, so that two plans never lie in memory together
    replica.eval_network = factory(input, {.training = false, .activations = options.activations},
                                   *replica.backend, replica.store);
    states[rank].eval_images = allocate_staging(*replica.backend, replica.eval_network->input());
    states[rank].eval_labels = replica.backend->allocate(static_cast<std::size_t>(input.rows()));
  }
  replica.eval_network->set_batch(batch.count());
}

double DataParallel::Impl::evaluate_batch(int rank, const Batch& batch) {
  Backend& backend = *replicas[rank].backend;
  prepare_eval(rank, batch);
  Network& network = *replicas[rank].eval_network;
  const Tensor labels = label_tensor(states[rank].eval_labels, batch.count(), batch.size);
  upload_images(backend, batch, states[rank].eval_images, network.input());
  backend.upload(labels, batch.labels.data());
  network.forward({.training = false});

  backend.confusion_matrix(network.output(), labels,
                           static_cast<std::int64_t*>(states[rank].confusion.data()));
  backend.fill(sums_tensor(rank), 0);
  CrossEntropy loss;
  loss.logits = network.output();
  loss.labels = labels;
  loss.ignore_index = options.ignore_index;
  loss.loss = &step_sums(rank).loss;
  backend.cross_entropy(loss);
  return read_loss(rank);
}

void DataParallel::Impl::evaluate_rank(int rank, std::int64_t count,
                                       const std::function<Batch(std::int64_t)>& load,
                                       EvalSums& sums) {
  Backend& backend = *replicas[rank].backend;
  backend.fill(confusion_tensor(rank), 0);
  for (std::int64_t index = rank; index < count; index += ranks()) {
    communicators->progress().enter(rank, "evaluation", "the network");
    const Batch batch = load(index);
    sums.loss[index] = evaluate_batch(rank, batch);
    sums.pixels[index] =
        std::accumulate(batch.class_pixels.begin(), batch.class_pixels.end(), std::int64_t{0});
  }
  backend.download(sums.confusion[rank].data(), confusion_tensor(rank));
  backend.synchronize();
}

DataParallel::EvalResult DataParallel::evaluate(
    std::int64_t count, const std::function<Batch(std::int64_t index)>& load) {
  impl_->check_between_steps("evaluate");
  const auto images = static_cast<std::size_t>(count);
  const auto cells =
      static_cast<std::size_t>(impl_->options.num_classes) * impl_->options.num_classes;
  EvalSums sums{std::vector<double>(images),
                std::vector<std::int64_t>(images),
                {static_cast<std::size_t>(size()), std::vector<std::int64_t>(cells)}};
  impl_->group->run([&](int rank) { impl_->evaluate_rank(rank, count, load, sums); });

  EvalResult result{std::vector<std::int64_t>(cells), 0};
  for (const auto& confusion : sums.confusion) {
    for (std::size_t i = 0; i < cells; ++i) result.confusion[i] += confusion[i];
  }
  const std::int64_t pixels =
      std::accumulate(sums.pixels.begin(), sums.pixels.end(), std::int64_t{0});
  const double loss = std::accumulate(sums.loss.begin(), sums.loss.end(), 0.0);
  result.loss = pixels == 0 ? 0 : loss / static_cast<double>(pixels);
  return result;
}

}  // namespace lockstep
