#include "train/evaluator.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/seconds_since.h"
#include "data/augment.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "step/replica.h"
#include "train/replica_readings.h"

namespace lockstep {

namespace {

constexpr std::int64_t kImagesPerBatch = 16;

}  // namespace

Image side_by_side(const std::vector<Image>& images) {
  constexpr int kGap = 4;
  Image all{images.front().height, -kGap, {}};
  for (const Image& image : images) all.width += image.width + kGap;
  all.pixels.assign(static_cast<std::size_t>(all.height) * static_cast<std::size_t>(all.width) * 3,
                    255);
  std::ptrdiff_t left = 0;
  for (const Image& image : images) {
    LOCKSTEP_CHECK(image.height == all.height, "images side by side have heights of ", all.height,
                   " and ", image.height);
    for (std::ptrdiff_t y = 0; y < image.height; ++y) {
      std::copy_n(image.pixels.begin() + y * image.width * 3, image.width * 3,
                  all.pixels.begin() + (y * all.width + left) * 3);
    }
    left += image.width + kGap;
  }
  return all;
}

struct Evaluator::Impl {
  Impl(const Config& options, DataParallel& group)
      : config(options),
        replicas(group),
        loader(options.data, options.run.seed),
        images_per_batch(
            loader.task() == Task::kClassification && loader.one_size() ? kImagesPerBatch : 1) {}

  ReplicaStatistics statistics(EvalStats stats, const std::vector<ReplicaStatistics>& training);
  int divisor() const { return static_cast<int>(config.architecture().size_divisor); }
  void predict_examples();
  ValidationExample example_of(std::int64_t index, const Batch& batch,
                               const std::vector<std::int32_t>& classes) const;

  Config config;
  DataParallel& replicas;
  ValLoader loader;
  // Maps of pixels are evaluated one by one, however large they are; whole images of one size
  // together. The same for any number of devices, so that the sum of the losses is.
  std::int64_t images_per_batch;
  std::vector<ValidationExample> examples;
};

Evaluator::Evaluator(const Config& config, DataParallel& replicas)
    : impl_(std::make_shared<Impl>(config, replicas)) {}

Evaluator::~Evaluator() = default;

const Dataset& Evaluator::dataset() const { return impl_->loader.dataset(); }

ReplicaStatistics Evaluator::Impl::statistics(EvalStats stats,
                                              const std::vector<ReplicaStatistics>& training) {
  switch (stats) {
    case EvalStats::kDevice0:
      break;
    case EvalStats::kMean:
      return merge_running_statistics(training, false);
    case EvalStats::kPooled:
      return merge_running_statistics(training, true);
    case EvalStats::kPrecise:
      return precise_statistics(replicas, config);
  }
  return training.front();
}

ValidationExample Evaluator::Impl::example_of(std::int64_t index, const Batch& batch,
                                              const std::vector<std::int32_t>& classes) const {
  const int height = batch.size.height, width = batch.size.width;
  return {loader.dataset().describe(index),
          denormalize(batch, 0, config.data),
          {height, width, batch.labels},
          {height, width, {classes.begin(), classes.end()}}};
}

void Evaluator::Impl::predict_examples() {
  constexpr std::int64_t kExamples = 4;
  const std::int64_t count = std::min(kExamples, loader.size());
  replicas.for_each_replica([&](Replica& replica) {
    if (replica.rank() != 0) return;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t index = i * loader.size() / count;
      const Batch batch = loader.load(index, 1, divisor());
      examples.push_back(
          example_of(index, batch, training_replica(replica).validation().predict(batch)));
    }
  });
}

const std::vector<ValidationExample>& Evaluator::examples() const { return impl_->examples; }

Evaluation Evaluator::evaluate(EvalStats stats, bool with_examples) {
  const auto start = std::chrono::steady_clock::now();
  DataParallel& replicas = impl_->replicas;
  const std::vector<ReplicaStatistics> training = read_running_statistics(replicas);
  const std::vector<ReplicaStatistics> used(training.size(), impl_->statistics(stats, training));
  write_running_statistics(replicas, used);
  const int divisor = impl_->divisor();
  const std::int64_t images = impl_->loader.size(), each = impl_->images_per_batch;
  auto work = std::make_shared<LongWork>("evaluating", "images", images);
  // A replica that does not return after a failure may outlive this object.
  const DataParallel::EvalResult result = replicas.evaluate(
      (images + each - 1) / each,
      [impl = impl_, shown = std::weak_ptr(work), images, each, divisor](std::int64_t batch) {
        const std::int64_t first = batch * each, count = std::min(each, images - first);
        Batch loaded = impl->loader.load(first, count, divisor);
        if (const auto progress = shown.lock()) progress->advance(count);
        return loaded;
      });
  work.reset();
  impl_->examples.clear();
  if (with_examples && impl_->loader.task() == Task::kSegmentation) impl_->predict_examples();
  write_running_statistics(replicas, training);

  Evaluation evaluation;
  evaluation.eval_stats = stats;
  evaluation.task = impl_->loader.task();
  evaluation.metrics = confusion_metrics(result.confusion, impl_->config.data.num_classes);
  if (evaluation.metrics.a_acc) evaluation.loss = result.loss;
  evaluation.images = images;
  if (evaluation.task == Task::kClassification) {
    const std::int64_t labelled =
        std::accumulate(result.confusion.begin(), result.confusion.end(), std::int64_t{0});
    evaluation.top5 = percent(result.top5, labelled);
  }
  evaluation.confusion = result.confusion;
  evaluation.seconds = seconds_since(start);
  return evaluation;
}

}  // namespace lockstep
