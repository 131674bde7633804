#include "step/bucketed_reducer.h"

#include <algorithm>
#include <unordered_map>

namespace lockstep {
namespace {

/// The first layer that uses each parameter: the last one to add to its gradient.
std::unordered_map<const Parameter*, std::size_t> first_uses(const Network& network) {
  std::unordered_map<const Parameter*, std::size_t> first;
  for (std::size_t layer = 0; layer < network.layers().size(); ++layer) {
    for (const Parameter* parameter : network.layers()[layer]->parameters()) {
      first.emplace(parameter, layer);
    }
  }
  return first;
}

}  // namespace

std::vector<GradientBucket> plan_gradient_buckets(const Network& network,
                                                  const GradientExchangeOptions& options) {
  const ParameterStore& store = network.parameters();
  const auto first = first_uses(network);
  const std::size_t last_layer = network.layers().size() - 1;
  std::vector<GradientBucket> buckets;
  GradientBucket next{store.elements(), store.elements(), last_layer};
  for (std::size_t i = store.parameters().size(); i-- > 0;) {
    const Parameter& parameter = *store.parameters()[i];
    const auto use = first.find(&parameter);
    // A parameter that no layer uses has a gradient of zero at any time.
    if (use != first.end()) next.ready_after = std::min(next.ready_after, use->second);
    next.begin = parameter.offset;
    const std::size_t bytes = static_cast<std::size_t>(next.end - next.begin) * sizeof(float);
    if (i > 0 && bytes < (buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes)) {
      continue;
    }
    buckets.push_back(next);
    next = {next.begin, next.begin, last_layer};
  }
  // Only a store that another network has filled in another order needs it.
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.ready_after > b.ready_after; });
  return buckets;
}

UpdateShare BucketedReducer::share() const {
  UpdateShare share{.rank = rank_.rank, .stores = {&rank_.store}};
  share.saves = rank_.process.front() == &rank_.store;
  return share;
}

std::span<const GradientPart> BucketedReducer::begin(const StepInput& input) {
  started_ = 0;
  overlaps_ = !known_batches_.insert(input.batch).second;
  return {};
}

void BucketedReducer::layer_done(std::size_t layer) {
  if (!overlaps_) return;
  while (started_ < buckets_.size() && buckets_[started_].ready_after >= layer) start_next();
}

void BucketedReducer::start_next() {
  const GradientBucket& bucket = buckets_[started_++];
  rank_.backend.convolutions().finish_conv2d_gradients();
  all_reduce_.start(rank_.store.grads() + bucket.begin, bucket.end - bucket.begin);
}

// What the rank's stream is given from `finish` on finds sums in the gradients.
void BucketedReducer::reduce(LossScaler& scaler) {
  rank_.communicator.barrier("gradient exchange");
  while (started_ < buckets_.size()) start_next();
  all_reduce_.finish();
  if (scaler.check(rank_.store, 1)) rank_.communicator.barrier("gradient check");
}

GradientSum BucketedReducer::sum(std::int64_t begin) {
  sum_ = rank_.store.grads() + begin;
  return {{&sum_, 1}, {}};
}

void BucketedReducer::publish() { rank_.communicator.barrier("weight update"); }

}  // namespace lockstep
