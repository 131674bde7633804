// Batch Renormalization's correction: one thread takes one channel.

#include "backend/formulas.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/grid_loop.h"

namespace lockstep::gpu {
namespace {

struct CorrectChannel {
  BatchRenormCorrection a;
  const float* merged;  // [2, C]
  std::int64_t count;

  __device__ void operator()(std::int32_t c) const {
    correct_channel(a, c, merged[c], merged[a.channels + c], count);
  }
};

struct AddCorrectedGradient {
  BatchRenormGradient a;

  __device__ void operator()(std::int32_t c) const { add_corrected_gradient(a, c); }
};

}  // namespace

void GpuNorms::batch_renorm_correction(const BatchRenormCorrection& a) {
  check_operands(a);
  check_parts(context_, "batch_renorm_correction", are_whole(a.slots));
  const Context& context = context_.entered();
  const StatSlot merged = merge_moments(context, a.slots, a.channels);
  BatchRenormCorrection one = a;
  one.slots = {};
  for_each(context, static_cast<std::int32_t>(a.channels),
           CorrectChannel{one, merged.data, merged.count});
}

void GpuNorms::batch_renorm_gradient(const BatchRenormGradient& a) {
  check_operands(a);
  const Context& context = context_.entered();
  for_each(context, static_cast<std::int32_t>(a.channels), AddCorrectedGradient{a});
}

}  // namespace lockstep::gpu
