#include "step/gradient_hook.h"

#include <algorithm>
#include <cmath>

#include "backend/operands.h"
#include "backend/sum_parts.h"
#include "lockstep/core/check.h"
#include "step/parameter_ranges.h"
#include "step/step_totals.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

Tensor bytes_of(const void* number, std::size_t bytes) {
  return bytes_tensor(const_cast<void*>(number), bytes);
}

}  // namespace

HookedGradients::HookedGradients(const DataParallelOptions& options,
                                 const GradientExchangeChoice& exchange, SyncGroup& group,
                                 const ParameterStore& any)
    : group_(group), layout_(group.rank_layout()) {
  if (!options.on_gradients) return;
  values_.resize(static_cast<std::size_t>(any.elements()));
  for (const auto& parameter : any.parameters()) {
    if (is_frozen(parameter->name, options.parameter_groups)) continue;
    named_.push_back({parameter->name, parameter->shape,
                      std::span(values_).subspan(static_cast<std::size_t>(parameter->offset),
                                                 static_cast<std::size_t>(parameter->elements))});
  }
  if (exchange.kind == GradientExchangeKind::kOwner) peers_ = layout_.peers();
  messages_.resize(static_cast<std::size_t>(layout_.processes()));
  in_.resize(messages_.size());
  barrier_ = &group.make_barrier<char, char>(
      [this, &hook = options.on_gradients](const SyncCall&, auto, auto) {
        trade();
        call_named("on_gradients", [&] { hook(named_); });
      });
}

void HookedGradients::meet(int rank) {
  barrier_->exchange(rank - layout_.first_rank(), {"the gradient hook", Direction::kOther, 0, 0});
}

std::span<float> HookedGradients::of_process(int process) {
  return part_of(values(), owned_by_process(std::ssize(values_), process, layout_));
}

// On one thread, while the ranks wait.
void HookedGradients::trade() {
  for (const int peer : peers_) {
    messages_[static_cast<std::size_t>(peer)] = std::as_bytes(of_process(layout_.process));
  }
  group_.exchange(kStepChannel, peers_, messages_, in_);
  for (const int peer : peers_) {
    const Bytes& theirs = in_[static_cast<std::size_t>(peer)];
    const std::span<std::byte> place = std::as_writable_bytes(of_process(peer));
    LOCKSTEP_CHECK(theirs.size() == place.size(), layout_.describe(peer), " sent ", theirs.size(),
                   " bytes of gradients, expected ", place.size());
    std::copy(theirs.begin(), theirs.end(), place.begin());
  }
}

// --- a rank's end ---

HookedShard::HookedShard(HookedGradients& all, const UpdateShare& share, std::int64_t elements,
                         Backend& backend)
    : all_(all),
      backend_(backend),
      rank_(share.rank),
      brings_(share.saves),
      begin_(owned_range(elements, share.owner, share.owners).begin),
      size_(owned_range(elements, share.owner, share.owners).size()) {
  if (!all_.any()) return;
  changed_ = backend_.allocate(static_cast<std::size_t>(size_) * sizeof(float));
  changed_gradients_ = static_cast<const float*>(changed_.data());
}

void HookedShard::change(OptimizerShard& shard) {
  if (!all_.any() || !all_finite(shard.losses)) return;
  float* const own = all_.values().data() + begin_;
  if (brings_ && size_ > 0) {
    sum(shard.grads, shard.joins);
    const float scale = scale_of(shard.grad_scale);
    std::transform(sums_[0].begin(), sums_[0].end(), own, [&](float g) { return g * scale; });
  }
  all_.meet(rank_);
  if (size_ > 0) backend_.upload(Tensor(changed_.data(), Shape{1, size_}), own);
  shard.grads = {&changed_gradients_, 1};
  shard.joins = {};
  shard.grad_scale = 1.0F;
}

bool HookedShard::all_finite(std::span<const double* const> losses) const {
  std::vector<double> values(losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    backend_.download(&values[i], bytes_of(losses[i], sizeof(double)));
  }
  backend_.synchronize();
  return std::all_of(values.begin(), values.end(),
                     [](double value) { return std::isfinite(value); });
}

float HookedShard::scale_of(const DeviceScalar<float>& scale) const {
  if (scale.memory == nullptr) return scale.value;
  float added = 0;
  backend_.download(&added, bytes_of(scale.memory, sizeof(float)));
  backend_.synchronize();
  return scale.value + added;
}

void HookedShard::fetch(const float* part, std::vector<float>& to) const {
  to.resize(static_cast<std::size_t>(size_));
  backend_.download(to.data(), Tensor(const_cast<float*>(part), Shape{1, size_}));
  backend_.synchronize();
}

// GPUs may not reach each other's memory; the host reaches all.
void HookedShard::sum(std::span<const float* const> parts, std::span<const int> joins_of) {
  sums_.resize(static_cast<std::size_t>(*most_waiting_sums(joins_of, parts.size())));
  place_parts(
      parts.size(), joins_of,
      [&](std::size_t part, std::size_t sum, bool first) {
        fetch(parts[part], first ? sums_[sum] : fetched_);
        if (!first) add_values(fetched_.data(), size_, sums_[sum].data());
      },
      [&](std::size_t sum) { add_values(sums_[sum + 1].data(), size_, sums_[sum].data()); });
}

}  // namespace lockstep
