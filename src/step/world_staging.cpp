#include "step/world_staging.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

Tensor flat(float* data, std::int64_t elements) { return {data, Shape{1, elements}}; }

Tensor number(const double* data) {
  return {const_cast<double*>(data), Shape{1, sizeof(double)}, DType::kUInt8};
}

/// So that packs of a row are aligned as the parameters are.
constexpr std::int64_t kRowMultiple = 64;

}  // namespace

WorldStaging::WorldStaging(Backend& backend, const ParameterStore& store,
                           std::span<const double* const> losses, std::int64_t begin,
                           std::int64_t end)
    : backend_(backend), store_(store), begin_(begin), end_(end) {
  for (const double* loss : losses) losses_.push_back(backend_.make_readback(number(loss), 1));
  if (elements() > 0) {
    weights_ = backend_.make_readback(flat(store_.values() + begin_, elements()), 1);
  }
  other_losses_ = backend_.allocate(sizeof(double));
}

void WorldStaging::fetch_gradients(std::size_t parts) {
  while (grads_.size() < parts) {
    const Tensor all = flat(store_.grads_of_part(grads_.size()), store_.elements());
    grads_.push_back({backend_.make_readback(all, 1)});
  }
  for (std::size_t part = 0; part < parts; ++part) grads_[part].readback->start(0);
  for (const auto& loss : losses_) loss->start(0);
  for (std::size_t part = 0; part < parts; ++part) {
    grads_[part].host = static_cast<const float*>(grads_[part].readback->wait(0));
  }
  losses_sum_ = 0;
  for (const auto& loss : losses_) {
    const double value = *static_cast<const double*>(loss->wait(0));
    if (!std::isfinite(value)) losses_sum_ += value;
  }
}

std::int64_t WorldStaging::stride() const {
  return (elements() + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

float* WorldStaging::row(std::size_t i) const {
  return static_cast<float*>(sums_.data()) + static_cast<std::int64_t>(i) * stride();
}

void WorldStaging::reserve_sums(std::size_t count) {
  if (elements() == 0 || count <= rows_) return;
  rows_ = count;
  outgrown_.push_back(std::move(sums_));
  sums_ = backend_.allocate(rows_ * static_cast<std::size_t>(stride()) * sizeof(float));
}

void WorldStaging::bring_sum(std::size_t i, const float* values) {
  if (elements() > 0) backend_.upload(flat(row(i), elements()), values);
}

const float* WorldStaging::sum(std::size_t i, std::int64_t begin) const {
  return row(i) + (begin - begin_);
}

void WorldStaging::bring_losses(double others) { backend_.upload(number(other_losses()), &others); }

void WorldStaging::fetch_weights(float* to) {
  if (!weights_) return;
  weights_->start(0);
  std::copy_n(static_cast<const float*>(weights_->wait(0)), elements(), to);
}

void WorldStaging::bring_weights(std::int64_t begin, std::span<const float> values) {
  backend_.upload(flat(store_.values() + begin, static_cast<std::int64_t>(values.size())),
                  values.data());
}

}  // namespace lockstep
