#include "train/evaluator.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "core/seconds_since.h"
#include "data/augment.h"
#include "data/window_merge.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "step/replica.h"
#include "train/before_training.h"
#include "train/eval_batches.h"
#include "train/replica_readings.h"

namespace lockstep {

namespace {

/// Four images, spread over the split.
std::vector<std::int64_t> example_indices(std::int64_t images) {
  constexpr std::int64_t kExamples = 4;
  const std::int64_t count = std::min(kExamples, images);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(i * images / count);
  return indices;
}

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
      : config(options), replicas(group), loader(options.data, options.run.seed) {
    check_evaluated_sizes(config, replicas.size(), loader);
  }

  ReplicaStatistics statistics(EvalStats stats, const std::vector<ReplicaStatistics>& training);
  std::int64_t together() const { return images_together(config, replicas.size(), loader); }
  int divisor() const { return static_cast<int>(config.architecture().size_divisor); }
  std::vector<ValidationExample> predict(const std::vector<std::int64_t>& indices,
                                         const EvaluationOptions& options);
  void with_statistics(EvalStats stats, const std::function<void(const EvaluationOptions&)>& work);
  void check_has_images(EvalStats stats) const;
  ImageScores scores_of(std::int64_t index, const Batch& batch,
                        const std::vector<std::int32_t>& classes) const;
  ValidationExample example_of(std::int64_t index, const Batch& batch,
                               const std::vector<std::int32_t>& classes) const;

  Config config;
  DataParallel& replicas;
  ValLoader loader;
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
    case EvalStats::kBatch:
    case EvalStats::kOwn:
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

std::vector<ValidationExample> Evaluator::Impl::predict(const std::vector<std::int64_t>& indices,
                                                        const EvaluationOptions& options) {
  std::vector<ValidationExample> predicted;
  replicas.for_each_replica([&](Replica& replica) {
    if (replica.rank() != 0) return;
    for (const std::int64_t index : indices) {
      const Batch batch = loader.load(index, 1, divisor());
      predicted.push_back(
          example_of(index, batch, training_replica(replica).validation().predict(batch, options)));
    }
  });
  return predicted;
}

std::optional<std::string> window_warning(const Config& config, EvalStats stats,
                                          const Network& network) {
  const WindowOptions windows = config.windows(stats);
  if (!windows.any() || windows.blend != Blend::kCrop) return std::nullopt;
  const auto radius = network.receptive_radius(network.output_index("out"), windows.divisor);
  if (!radius) return std::nullopt;
  const int side = std::min(windows.window.height, windows.window.width);
  const WindowAxis axis = window_axis(100 * side, side, windows.overlap, windows.divisor);
  const int step = axis.starts[1] - axis.starts[0];
  if (axis.window - step >= 2 * *radius) return std::nullopt;
  return concat("windows of ", to_string(windows.window), " share ", axis.window - step,
                " pixels with the next, but the network looks ", *radius,
                " pixels around a pixel: maps differ from those of one piece; let windows share ",
                2 * *radius, " pixels by a larger eval.overlap or eval.window");
}

// The training's are put back.
void Evaluator::Impl::with_statistics(EvalStats stats,
                                      const std::function<void(const EvaluationOptions&)>& work) {
  const std::vector<ReplicaStatistics> training = read_running_statistics(replicas);
  write_running_statistics(
      replicas, std::vector<ReplicaStatistics>(training.size(), statistics(stats, training)));
  work({normalizer_of(stats), config.windows(stats)});
  write_running_statistics(replicas, training);
}

void Evaluator::Impl::check_has_images(EvalStats stats) const {
  if (loader.task() != Task::kSegmentation) {
    throw ConfigError(
        "scores per image are of segmentations; an image that is classified is "
        "right or wrong (lockstep predict names its class)");
  }
  if (stats == EvalStats::kBatch && together() > 1) {
    throw ConfigError(concat("scores per image: bn.eval_stats = \"batch\" normalises ", together(),
                             " images together; choose another, or ", "bn.eval_images = 1"));
  }
}

ImageScores Evaluator::Impl::scores_of(std::int64_t index, const Batch& batch,
                                       const std::vector<std::int32_t>& classes) const {
  const auto count = static_cast<std::size_t>(config.data.num_classes);
  const Label ignored = ignored_label(config.data);
  std::vector<std::int64_t> confusion(count * count);
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] == ignored) continue;
    ++confusion[batch.labels[i] * count + static_cast<std::size_t>(classes[i])];
  }
  return {loader.dataset().describe(index), confusion_metrics(confusion, config.data.num_classes)};
}

std::vector<ImageScores> Evaluator::evaluate_images(EvalStats stats) {
  impl_->check_has_images(stats);
  const std::int64_t images = impl_->loader.size();
  auto scores = std::make_shared<std::vector<ImageScores>>(static_cast<std::size_t>(images));
  auto work = std::make_shared<LongWork>("evaluating per image", "images", images);
  impl_->with_statistics(stats, [&](const EvaluationOptions& options) {
    // A replica that does not return after a failure may outlive this object.
    impl_->replicas.for_each_replica(
        [impl = impl_, scores, work, images, options](Replica& replica) {
          for (std::int64_t i = replica.rank(); i < images; i += impl->replicas.size()) {
            const Batch batch = impl->loader.load(i, 1, impl->divisor());
            (*scores)[static_cast<std::size_t>(i)] = impl->scores_of(
                i, batch, training_replica(replica).validation().predict(batch, options));
            work->advance();
          }
        });
  });
  return std::move(*scores);
}

std::vector<ValidationExample> Evaluator::predict(EvalStats stats,
                                                  const std::vector<std::int64_t>& indices) {
  impl_->check_has_images(stats);
  std::vector<ValidationExample> predicted;
  impl_->with_statistics(stats, [&](const EvaluationOptions& options) {
    predicted = impl_->predict(indices, options);
  });
  return predicted;
}

const std::vector<ValidationExample>& Evaluator::examples() const { return impl_->examples; }

Evaluation Evaluator::evaluate(EvalStats stats, bool with_examples) {
  const auto start = std::chrono::steady_clock::now();
  const bool by_batch = stats == EvalStats::kBatch;
  const std::int64_t images = impl_->loader.size();
  const EvalBatches batches =
      batches_of(stats, impl_->config, impl_->replicas.size(), impl_->loader);
  const bool segments = impl_->loader.task() == Task::kSegmentation;
  const std::vector<std::int64_t> shown =
      with_examples && segments ? example_indices(images) : std::vector<std::int64_t>{};
  DataParallel::EvalResult result;
  impl_->with_statistics(stats, [&](const EvaluationOptions& options) {
    auto work = std::make_shared<LongWork>("evaluating", "images", images);
    // A replica that does not return after a failure may outlive this object.
    result = impl_->replicas.evaluate(
        batches.count(),
        [impl = impl_, progress = std::weak_ptr(work), batches](std::int64_t batch) {
          Batch loaded = impl->loader.load(batches.images_of(batch), impl->divisor());
          if (const auto told = progress.lock()) told->advance(loaded.count());
          return loaded;
        },
        options);
    work.reset();
    impl_->examples = impl_->predict(shown, options);
  });

  Evaluation evaluation;
  evaluation.eval_stats = stats;
  evaluation.task = impl_->loader.task();
  evaluation.metrics = confusion_metrics(result.confusion, impl_->config.data.num_classes);
  if (evaluation.metrics.a_acc) evaluation.loss = result.loss;
  evaluation.images = images;
  if (by_batch) evaluation.together = impl_->together();
  if (impl_->config.windows(stats).any()) evaluation.mismatch = result.mismatch;
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
