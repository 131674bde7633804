#include "train/eval_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/sampler.h"

namespace lockstep {

bool measures_disparity(const Config& config, bool frozen) {
  return config.run.eval_disparity && config.bn.has_running_statistics() && !frozen &&
         are_running(config.bn.eval_stats);
}

// The same weights by running statistics and by each image's own; precise ones say whether running
// ones could do what the batches' own do.
std::vector<EvalStats> evaluated_at_end(const Config& config, int ranks, bool frozen) {
  std::vector<EvalStats> stats;
  const auto add = [&](EvalStats wanted) {
    const bool there = std::find(stats.begin(), stats.end(), wanted) != stats.end();
    if (!there && wanted != config.bn.eval_stats) stats.push_back(wanted);
  };
  if (config.run.eval_own && config.bn.has_running_statistics()) {
    add(are_running(config.bn.eval_stats) ? EvalStats::kOwn : EvalStats::kDevice0);
  }
  if (config.run.eval_all_stats && ranks > 1 && !config.bn.shares_statistics()) {
    for (const EvalStats s : {EvalStats::kDevice0, EvalStats::kMean, EvalStats::kPooled}) add(s);
  }
  if (measures_disparity(config, frozen)) add(EvalStats::kPrecise);
  return stats;
}

EvalNormalizer normalizer_of(EvalStats stats) {
  if (stats == EvalStats::kOwn) return EvalNormalizer::kOwn;
  return stats == EvalStats::kBatch ? EvalNormalizer::kBatch : EvalNormalizer::kRunning;
}

std::int64_t images_together(const Config& config, int ranks, const ValLoader& loader) {
  return std::min(config.bn.eval_images.value_or(config.images_together(ranks)), loader.size());
}

EvalBatches::EvalBatches(std::vector<std::int64_t> order, std::int64_t batches, std::int64_t each)
    : order_(std::move(order)), batches_(batches), each_(each) {}

EvalBatches EvalBatches::in_order(std::int64_t images, std::int64_t each) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(images));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return {std::move(order), (images + each - 1) / each, each};
}

EvalBatches EvalBatches::shuffled(std::int64_t images, std::int64_t least) {
  std::vector<std::int64_t> order;
  epoch_order(images, true, 0, 0, order);
  return {std::move(order), std::max<std::int64_t>(1, images / least), 0};
}

std::int64_t EvalBatches::most() const {
  const auto images = static_cast<std::int64_t>(order_.size());
  return each_ > 0 ? std::min(images, each_) : (images + batches_ - 1) / batches_;
}

std::vector<std::int64_t> EvalBatches::images_of(std::int64_t batch) const {
  const auto images = static_cast<std::int64_t>(order_.size());
  const auto edge = [&](std::int64_t b) {
    return each_ > 0 ? std::min(images, b * each_) : b * images / batches_;
  };
  return {order_.begin() + edge(batch), order_.begin() + edge(batch + 1)};
}

// Maps of pixels are evaluated one by one, however large they are; whole images of one size
// together.
EvalBatches batches_of(EvalStats stats, const Config& config, int ranks, const ValLoader& loader) {
  constexpr std::int64_t kImagesPerBatch = 16;
  if (stats == EvalStats::kBatch) {
    return EvalBatches::shuffled(loader.size(), images_together(config, ranks, loader));
  }
  const bool several = loader.task() == Task::kClassification && loader.one_size();
  return EvalBatches::in_order(loader.size(), several ? kImagesPerBatch : 1);
}

}  // namespace lockstep
