#include "train/eval_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "data/sampler.h"

namespace lockstep {

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

std::vector<std::int64_t> EvalBatches::images_of(std::int64_t batch) const {
  const auto images = static_cast<std::int64_t>(order_.size());
  const auto edge = [&](std::int64_t b) {
    return each_ > 0 ? std::min(images, b * each_) : b * images / batches_;
  };
  return {order_.begin() + edge(batch), order_.begin() + edge(batch + 1)};
}

}  // namespace lockstep
