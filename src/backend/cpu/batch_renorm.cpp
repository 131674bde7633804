// Batch Renormalization's correction: a few numbers per channel.

#include "backend/cpu/operations.h"
#include "backend/formulas.h"
#include "backend/moments.h"

namespace lockstep {

void CpuNorms::batch_renorm_correction(const BatchRenormCorrection& a) {
  check_operands(a);
  const auto bytes = 2 * static_cast<std::size_t>(a.channels) * sizeof(float);
  auto* merged = static_cast<float*>(cpu_.scratch(bytes));
  const std::int64_t count = merge_moments(a.slots, a.channels, merged);
  for (std::int64_t c = 0; c < a.channels; ++c) {
    correct_channel(a, c, merged[c], merged[a.channels + c], count);
  }
}

void CpuNorms::batch_renorm_gradient(const BatchRenormGradient& a) {
  check_operands(a);
  for (std::int64_t c = 0; c < a.channels; ++c) add_corrected_gradient(a, c);
}

}  // namespace lockstep
