#pragma once
// BatchNorm over the GPUs of a process (group BatchNorm), described to cuDNN's graph interface:
// norm operations in mode BATCH_NORM with peer statistics. What Lockstep's own is compared with.

#include <cstdint>
#include <vector>

#include "kernels/cudnn/cudnn_graph.h"

namespace lockstep::gpu {

/// One GPU's part of a group BatchNorm. It has no ReLU: cuDNN's heuristics propose no engine for
/// one with it.
struct GroupNormProblem {
  CudnnExtents x{};  // channels last
  DType dtype = DType::kFloat32;
  int peers = 2;  // GPUs of the group, this one included; 1: a BatchNorm by itself
};

/// Ids of the tensors in a variant pack. Per channel: fp32 [C]. kPeerId + r: the exchange buffer of
/// GPU r of the group, fp32 [peers, 4 C], zeros before the first use; in forward and backward
/// passes another one.
enum : std::int64_t {
  kNormX = 1,
  kNormY,
  kNormGradY,
  kNormGradX,
  kNormScale,
  kNormBias,
  kNormMean,    // of the group, forward to backward
  kNormInvStd,  // the same
  kNormGradScale,
  kNormGradBias,
  kNormEps,  // fp32, by value
  kPeerId = 100
};

/// The forward pass: x to y, mean and invstd. Null when no engine of cuDNN can take it.
CudnnDescriptor describe_group_forward(const GroupNormProblem& problem, const CudnnTarget& target);
/// The backward pass: x, dy, mean and invstd to dx and the gradients of scale and bias.
CudnnDescriptor describe_group_backward(const GroupNormProblem& problem, const CudnnTarget& target);

/// The engines that cuDNN proposes for such a graph, the most promising first. They are compiled
/// for the GPU when a plan is made of one, for which cuDNN needs libcuda: without it there are
/// none.
std::vector<CudnnDescriptor> find_norm_engines(const CudnnDescriptor& graph,
                                               const CudnnTarget& target);

}  // namespace lockstep::gpu
