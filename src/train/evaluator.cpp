#include "train/evaluator.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "lockstep/core/check.h"
#include "train/running_statistics.h"

namespace lockstep {

namespace {

constexpr std::int64_t kImagesPerBatch = 16;

}  // namespace

struct Evaluator::Impl {
  Impl(const Config& options, DataParallel& group)
      : config(options),
        replicas(group),
        loader(options.data, options.run.seed),
        images_per_batch(
            loader.task() == Task::kClassification && loader.one_size() ? kImagesPerBatch : 1) {}

  ReplicaStatistics statistics(EvalStats stats, const std::vector<ReplicaStatistics>& training);

  Config config;
  DataParallel& replicas;
  ValLoader loader;
  // Maps of pixels are evaluated one by one, however large they are; whole images of one size
  // together. The same for any number of devices, so that the sum of the losses is.
  std::int64_t images_per_batch;
};

Evaluator::Evaluator(const Config& config, DataParallel& replicas)
    : impl_(std::make_unique<Impl>(config, replicas)) {}

Evaluator::~Evaluator() = default;

const Dataset& Evaluator::dataset() const { return impl_->loader.dataset(); }

void warn_of_skipped(const Dataset& dataset, std::vector<std::string>& warnings) {
  const std::vector<std::string> skipped = dataset.skipped();
  if (skipped.empty()) return;
  warnings.push_back(concat("data.skip_broken: ", skipped.size(), " of ",
                            dataset.size() + static_cast<std::int64_t>(skipped.size()),
                            " samples are left out"));
  for (const std::string& text : skipped) warnings.push_back(concat("left out: ", text));
}

ReplicaStatistics Evaluator::Impl::statistics(EvalStats stats,
                                              const std::vector<ReplicaStatistics>& training) {
  switch (stats) {
    case EvalStats::kDevice0:
      break;
    case EvalStats::kMean:
      return merge_running_statistics(training, false);
    case EvalStats::kPooled:
      return merge_running_statistics(training, true);
    case EvalStats::kPrecise: {
      TrainLoader batches(config.data, {.batch = config.micro_batch(replicas.size()),
                                        .drop_last = config.batch.drop_last,
                                        .seed = config.run.seed});
      return precise_statistics(replicas, batches, config.bn.precise_iters);
    }
  }
  return training.front();
}

Evaluation Evaluator::evaluate(EvalStats stats) {
  const auto start = std::chrono::steady_clock::now();
  DataParallel& replicas = impl_->replicas;
  const std::vector<ReplicaStatistics> training = read_running_statistics(replicas);
  const std::vector<ReplicaStatistics> used(training.size(), impl_->statistics(stats, training));
  write_running_statistics(replicas, used);
  const int divisor = static_cast<int>(impl_->config.architecture().size_divisor);
  const std::int64_t images = impl_->loader.size(), each = impl_->images_per_batch;
  const DataParallel::EvalResult result =
      replicas.evaluate((images + each - 1) / each, [&](std::int64_t batch) {
        const std::int64_t first = batch * each;
        return impl_->loader.load(first, std::min(each, images - first), divisor);
      });
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
  evaluation.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return evaluation;
}

}  // namespace lockstep
