#include "step/loss_scaler.h"

#include "step/step_totals.h"

namespace lockstep {

LossScaler::LossScaler(const std::optional<LossScaleOptions>& options, Backend& backend,
                       StepSums& sums, std::size_t losses)
    : options_(options), backend_(backend), sums_(sums), losses_(losses) {}

DeviceScalar<float> LossScaler::scale() const {
  return options_ ? DeviceScalar<float>(0.0F, &sums_.scale.scale) : 1.0F;
}

DeviceScalar<float> LossScaler::inverse() const {
  return options_ ? DeviceScalar<float>(0.0F, &sums_.scale.inverse) : 1.0F;
}

const std::int64_t* LossScaler::skipped() const {
  return options_ ? &sums_.scale.skipped : nullptr;
}

void LossScaler::add_indicators(std::vector<const double*>& indicators) const {
  if (options_) return indicators.push_back(&sums_.guard);
  for (std::size_t i = 0; i < losses_; ++i) indicators.push_back(&sums_.losses[i]);
}

bool LossScaler::check(const ParameterStore& store, std::size_t parts) {
  if (!options_) return false;
  backend_.fill(bytes_tensor(&sums_.guard, sizeof(double)), 0);
  for (std::size_t part = 0; part < parts; ++part) {
    backend_.optimizer().check_gradients(
        {store.grads_of_part(part), store.elements(), sums_.losses.data(), &sums_.guard});
  }
  for (std::size_t i = 1; i < losses_; ++i) {  // a loss outweighs gradients: it comes later
    backend_.optimizer().check_gradients({store.grads(), 0, &sums_.losses[i], &sums_.guard});
  }
  return true;
}

void LossScaler::update() {
  if (!options_) return;
  backend_.optimizer().update_loss_scale({indicators_, &sums_.scale, options_->growth_interval});
}

Tensor LossScaler::state_tensor() const { return bytes_tensor(&sums_.scale, sizeof(sums_.scale)); }

LossScaleState LossScaler::state() const {
  LossScaleState state;
  backend_.download(&state, state_tensor());
  backend_.synchronize();
  return state;
}

void LossScaler::set_state(const LossScaleState& state) {
  backend_.upload(state_tensor(), &state);
  backend_.synchronize();
}

}  // namespace lockstep
