#include <algorithm>
#include <cmath>

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"

namespace lockstep::gpu {
namespace {

/// All threads that see something write the same. kWidth: of the packs, 1 where memory is not
/// aligned for more.
template <int kWidth>
__global__ void check_kernel(GradientCheck check) {
  const bool loss_is_finite = std::isfinite(*check.loss);
  bool finite = loss_is_finite;
  const std::int64_t packs = check.elements / kWidth;
  for (std::int64_t i = first_item(); i < packs; i += item_stride()) {
    const auto pack = load_pack<kWidth>(check.grads + i * kWidth);
    LOCKSTEP_UNROLL
    for (int k = 0; k < kWidth; ++k) finite = finite && std::isfinite(pack[k]);
  }
  for (std::int64_t i = packs * kWidth + first_item(); i < check.elements; i += item_stride()) {
    finite = finite && std::isfinite(check.grads[i]);
  }
  if (!finite) *check.guard = bad_guard(loss_is_finite);
}

struct Guards {
  const double* ranks[kMaxRanks];
  int count;
};

/// One thread does all.
__global__ void update_kernel(Guards guards, LossScaleState* state, std::int64_t growth_interval) {
  double sum = 0;
  for (int rank = 0; rank < guards.count; ++rank) sum += *guards.ranks[rank];
  *state = next_loss_scale(*state, sum, growth_interval);
}

}  // namespace

void GpuOptimizer::check_gradients(const GradientCheck& check) {
  check_operands(check);
  const Context& context = context_.entered();
  constexpr int kWidest = kPackWidth<float>;
  const bool aligned = is_aligned(check.grads, 16);
  // A rank without gradients has a loss to look at.
  const std::int64_t items = std::max<std::int64_t>(1, check.elements / (aligned ? kWidest : 1));
  launch_loop(context, items, aligned ? check_kernel<kWidest> : check_kernel<1>, check);
}

void GpuOptimizer::update_loss_scale(const LossScaleUpdate& update) {
  check_operands(update);
  const Context& context = context_.entered();
  LOCKSTEP_CHECK(update.guards.size() <= std::size_t{kMaxRanks}, "update_loss_scale: at most ",
                 kMaxRanks, " ranks, got ", update.guards.size());
  Guards guards{};
  guards.count = static_cast<int>(update.guards.size());
  std::copy(update.guards.begin(), update.guards.end(), guards.ranks);
  launch(update_kernel, 1, 1, context.stream, guards, update.state, update.growth_interval);
}

}  // namespace lockstep::gpu
