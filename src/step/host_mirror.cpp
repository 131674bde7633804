#include "step/host_mirror.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {
namespace {

Tensor flat(float* data, std::int64_t elements) { return {data, Shape{1, elements}}; }

Tensor number(const double* data) {
  return {const_cast<double*>(data), Shape{1, sizeof(double)}, DType::kUInt8};
}

/// So that packs of a row are aligned as the parameters are.
constexpr std::int64_t kRowMultiple = 64;

/// The form for GPUs.
class StagedMirror final : public HostMirror {
 public:
  StagedMirror(Backend& backend, const ParameterStore& store,
               std::vector<const double*> indicators);

  void fetch_gradients(std::size_t parts) override;
  const float* grads_of_part(std::size_t part) const override { return grads_[part].host; }
  void bring_sums(std::span<const float*> sums, std::int64_t elements) override;
  void bring_indicator(double others) override {
    backend_.upload(number(others_indicator()), &others);
  }
  const double* others_indicator() const override {
    return static_cast<const double*>(others_memory_.data());
  }
  const float* fetch_weights(const ElementRange& range) override;
  void bring_weights(std::int64_t begin, std::span<const float> values) override;

 private:
  struct Fetched {
    std::unique_ptr<Readback> readback;
    const float* host = nullptr;
  };

  Backend& backend_;
  std::vector<Fetched> grads_;                              // [part]
  std::vector<std::unique_ptr<Readback>> indicator_reads_;  // one double each
  std::unique_ptr<Readback> weights_;                       // of `weights_range_`
  ElementRange weights_range_;
  std::size_t rows_ = 0;
  Storage sums_;                   // [rows, elements], each row from a multiple of 64 floats on
  std::vector<Storage> outgrown_;  // kept: the device may still read the last step's
  Storage others_memory_;          // one double
};

StagedMirror::StagedMirror(Backend& backend, const ParameterStore& store,
                           std::vector<const double*> indicators)
    : HostMirror(store, std::move(indicators)),
      backend_(backend),
      others_memory_(backend.allocate(sizeof(double))) {
  for (const double* indicator : indicators_) {
    indicator_reads_.push_back(backend_.make_readback(number(indicator), 1));
  }
}

void StagedMirror::fetch_gradients(std::size_t parts) {
  while (grads_.size() < parts) {
    const Tensor all = flat(store_.grads_of_part(grads_.size()), store_.elements());
    grads_.push_back({backend_.make_readback(all, 1)});
  }
  for (std::size_t part = 0; part < parts; ++part) grads_[part].readback->start(0);
  for (const auto& indicator : indicator_reads_) indicator->start(0);
  for (std::size_t part = 0; part < parts; ++part) {
    grads_[part].host = static_cast<const float*>(grads_[part].readback->wait(0));
  }
  clear_indicator();
  for (const auto& indicator : indicator_reads_) {
    add_indicator(*static_cast<const double*>(indicator->wait(0)));
  }
}

void StagedMirror::bring_sums(std::span<const float*> sums, std::int64_t elements) {
  if (elements == 0) return;
  const std::int64_t stride = (elements + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
  if (sums.size() > rows_) {
    rows_ = sums.size();
    outgrown_.push_back(std::move(sums_));
    sums_ = backend_.allocate(rows_ * static_cast<std::size_t>(stride) * sizeof(float));
  }
  auto* row = static_cast<float*>(sums_.data());
  for (const float*& sum : sums) {
    backend_.upload(flat(row, elements), sum);
    sum = row;
    row += stride;
  }
}

const float* StagedMirror::fetch_weights(const ElementRange& range) {
  if (range.size() == 0) return nullptr;
  if (weights_ == nullptr || range.begin != weights_range_.begin ||
      range.end != weights_range_.end) {
    weights_ = backend_.make_readback(flat(store_.values() + range.begin, range.size()), 1);
    weights_range_ = range;
  }
  weights_->start(0);
  return static_cast<const float*>(weights_->wait(0));
}

void StagedMirror::bring_weights(std::int64_t begin, std::span<const float> values) {
  backend_.upload(flat(store_.values() + begin, static_cast<std::int64_t>(values.size())),
                  values.data());
}

}  // namespace

void HostMirror::add_indicator(double value) {
  if (!std::isfinite(value)) indicator_ += value;
}

void HostMirror::fetch_gradients(std::size_t) {
  clear_indicator();
  for (const double* indicator : indicators_) add_indicator(*indicator);
}

void HostMirror::bring_sums(std::span<const float*>, std::int64_t) {}

const float* HostMirror::fetch_weights(const ElementRange& range) {
  return store_.values() + range.begin;
}

void HostMirror::bring_weights(std::int64_t begin, std::span<const float> values) {
  std::copy(values.begin(), values.end(), store_.values() + begin);
}

std::unique_ptr<HostMirror> make_host_mirror(Backend& backend, const ParameterStore& store,
                                             std::vector<const double*> indicators) {
  if (!backend.asynchronous()) {
    return std::make_unique<HostMirror>(store, std::move(indicators));
  }
  return std::make_unique<StagedMirror>(backend, store, std::move(indicators));
}

}  // namespace lockstep
