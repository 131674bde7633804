#pragma once
// Softmax cross-entropy and mean squared error with their gradients, and the confusion matrix. At
// most 4096 classes. Outputs and their gradient may be fp32, bf16 or fp16, one type within a call;
// losses are always computed in fp32 and added in double.

#include <cstdint>

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// A label that is neither a class nor ignored cannot be reported without waiting for the GPU: it
/// makes the loss, and its pixel's gradient, NaN.
void cross_entropy(const Context& context, const CrossEntropy& arguments);
void mean_squared_error(const Context& context, const MeanSquaredError& arguments);
void reset_sums(const Context& context, double* sums, int count);
void confusion_matrix(const Context& context, const Tensor& logits, const Tensor& labels,
                      std::int64_t* matrix);

}  // namespace lockstep::gpu
