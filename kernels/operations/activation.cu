// Activations. ReLU, which most networks have, is a kernel of its own; all others are one kernel
// that is told which, as they are bound by memory and many kernels take long to compile.

#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/map.h"

namespace lockstep::gpu {

void GpuActivations::activation_forward(const Activation& activation, const Tensor& x,
                                        const Tensor& y) {
  check_activation_forward(x, y);
  const Context& context = context_.entered();
  if (activation.kind == ActivationKind::kRelu) {
    return map_activations(context, Relu(), x, {}, y, false);
  }
  map_activations(context, AnyActivation{activation}, x, {}, y, false);
}

void GpuActivations::activation_backward(const Activation& activation, const Tensor& saved,
                                         const Tensor& grad_y, const Tensor& grad_x,
                                         bool accumulate) {
  check_activation_backward(saved, grad_y, grad_x);
  const Context& context = context_.entered();
  if (activation.kind == ActivationKind::kRelu) {
    return map_activations(context, ReluGradient(), saved, grad_y, grad_x, accumulate);
  }
  map_activations(context, AnyActivationGradient{activation}, saved, grad_y, grad_x, accumulate);
}

}  // namespace lockstep::gpu
