#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/operations.h"
#include "backend/formulas.h"

namespace lockstep {

void CpuOptimizer::check_gradients(const GradientCheck& check) {
  check_operands(check);
  const bool loss_is_finite = std::isfinite(*check.loss);
  const bool finite =
      loss_is_finite && std::all_of(check.grads, check.grads + check.elements,
                                    [](float gradient) { return std::isfinite(gradient); });
  if (!finite) *check.guard = bad_guard(loss_is_finite);
}

void CpuOptimizer::update_loss_scale(const LossScaleUpdate& update) {
  check_operands(update);
  const double guards =
      std::accumulate(update.guards.begin(), update.guards.end(), 0.0,
                      [](double sum, const double* guard) { return sum + *guard; });
  *update.state = next_loss_scale(*update.state, guards, update.growth_interval);
}

}  // namespace lockstep
