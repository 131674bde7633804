// Losses of elements, whatever their formula is.

#include "backend/cpu/mean_loss.h"
#include "backend/required_operands.h"

namespace lockstep {
namespace {

ElementRows rows_of(const ElementLosses& a, float share, std::int64_t begin, std::int64_t end) {
  const bool gradient = static_cast<bool>(a.grad_output);
  return {
      .output = a.output.floats() + begin * a.output.row_stride,
      .target = a.target.floats() + begin * a.target.row_stride,
      .gradient = gradient ? a.grad_output.floats() + begin * a.grad_output.row_stride : nullptr,
      .output_stride = a.output.row_stride,
      .target_stride = a.target.row_stride,
      .gradient_stride = gradient ? a.grad_output.row_stride : 0,
      .rows = end - begin,
      .channels = a.output.shape.channels(),
      .share = share};
}

}  // namespace

void CpuLosses::element_losses(const ElementLosses& arguments) {
  check_operands(arguments);
  if (arguments.output.shape.elements() == 0) return;
  const float share = mean_share(arguments.normalizer.get(), arguments.grad_scale.get());
  add_mean_loss("element_losses", arguments, share, cpu_,
                [&](float of_image, std::int64_t begin, std::int64_t end) {
                  return arguments.formula->sum(rows_of(arguments, of_image, begin, end));
                });
}

}  // namespace lockstep
