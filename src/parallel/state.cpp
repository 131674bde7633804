// What replicas have in common, between steps: mirrored parameters and BatchNorm states, and the
// momentum, which is spread over owners or the same everywhere. It goes through host memory, so
// replicas may live on any mix of devices.

#include <algorithm>

#include "lockstep/core/check.h"
#include "parallel/data_parallel_impl.h"

namespace lockstep {
namespace {

struct HostState {
  std::vector<float> values;
  std::vector<float> statistics;
  std::vector<std::int64_t> tracked;  // [layer] num_batches_tracked
};

Tensor flat(float* data, std::int64_t elements) { return {data, Shape{1, elements}}; }

HostState download_state(const Replica& replica) {
  const ParameterStore& store = replica.store;
  HostState state{std::vector<float>(static_cast<std::size_t>(store.elements())),
                  std::vector<float>(static_cast<std::size_t>(store.statistics_elements())),
                  {}};
  Backend& backend = *replica.backend;
  backend.download(state.values.data(), flat(store.values(), store.elements()));
  if (!state.statistics.empty()) {
    backend.download(state.statistics.data(),
                     flat(store.statistics(), store.statistics_elements()));
  }
  for (const auto& layer : store.batch_norms()) state.tracked.push_back(layer->num_batches_tracked);
  backend.synchronize();
  return state;
}

void upload_state(const HostState& state, Replica& replica) {
  const ParameterStore& store = replica.store;
  Backend& backend = *replica.backend;
  backend.upload(flat(store.values(), store.elements()), state.values.data());
  if (!state.statistics.empty()) {
    backend.upload(flat(store.statistics(), store.statistics_elements()), state.statistics.data());
  }
  for (std::size_t i = 0; i < state.tracked.size(); ++i) {
    store.batch_norms()[i]->num_batches_tracked = state.tracked[i];
  }
  backend.synchronize();
}

}  // namespace

void DataParallel::replicate() {
  impl_->check_between_steps("replicate");
  if (size() == 1) return;
  HostState state;
  impl_->group->run([&](int rank) {
    if (rank == 0) state = download_state(impl_->replicas[0]);
  });
  impl_->group->run([&](int rank) {
    if (rank != 0) upload_state(state, impl_->replicas[rank]);
  });
}

std::vector<float> DataParallel::velocity() const {
  impl_->check_between_steps("velocity");
  std::vector<float> values(static_cast<std::size_t>(impl_->replicas[0].store.elements()));
  impl_->group->run([&](int rank) { impl_->states[rank].gradients->save_velocity(values); });
  return values;
}

void DataParallel::set_velocity(std::span<const float> values) {
  impl_->check_between_steps("set_velocity");
  const std::int64_t elements = impl_->replicas[0].store.elements();
  LOCKSTEP_CHECK(static_cast<std::int64_t>(values.size()) == elements, "expected the momentum of ",
                 elements, " parameter elements, got ", values.size());
  impl_->group->run([&](int rank) { impl_->states[rank].gradients->restore_velocity(values); });
}

std::optional<LossScaleState> DataParallel::loss_scale() const {
  impl_->check_between_steps("loss_scale");
  if (!impl_->options.loss_scale) return std::nullopt;
  LossScaleState state;
  impl_->group->run([&](int rank) {
    if (rank != 0) return;
    impl_->replicas[0].backend->download(&state, impl_->scale_tensor(0));
    impl_->replicas[0].backend->synchronize();
  });
  return state;
}

void DataParallel::set_loss_scale(const LossScaleState& state) {
  impl_->check_between_steps("set_loss_scale");
  LOCKSTEP_CHECK(impl_->options.loss_scale, "this run has no loss scale");
  LossScaleState copied = state;
  copied.inverse = 1.0F / state.scale;
  impl_->scale_in_use = state.scale;
  impl_->group->run([&](int rank) {
    impl_->replicas[rank].backend->upload(impl_->scale_tensor(rank), &copied);
    impl_->replicas[rank].backend->synchronize();
  });
}

}  // namespace lockstep
