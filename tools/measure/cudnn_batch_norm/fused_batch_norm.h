#pragma once
// cuDNN's BatchNorm fused with a ReLU, and with an addition before it.

#include "tools/measure/cudnn_batch_norm/gpu_case.h"

namespace lockstep::gpu {

struct DestroyTensor {
  void operator()(cudnnTensorStruct* tensor) const { cudnnDestroyTensorDescriptor(tensor); }
};
struct DestroyActivation {
  void operator()(cudnnActivationStruct* activation) const {
    cudnnDestroyActivationDescriptor(activation);
  }
};

/// BatchNorm fused with a ReLU, and an addition before it, by the functions made for that.
class FusedBatchNorm {
 public:
  FusedBatchNorm(Gpu& gpu, const BatchNormWork& work, bool residual)
      : gpu_(gpu),
        operations_(residual ? CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION
                             : CUDNN_BATCHNORM_OPS_BN_ACTIVATION),
        memory_(gpu, work, 0, residual),
        tensor_(make_tensor()),
        per_channel_(make_tensor()) {
    const CudnnExtents e = extents_of(work);
    check_supported(
        cudnnSetTensor4dDescriptor(tensor_.get(), CUDNN_TENSOR_NHWC, cudnn_type(work.dtype),
                                   static_cast<int>(e[0]), static_cast<int>(e[1]),
                                   static_cast<int>(e[2]), static_cast<int>(e[3])),
        "cudnnSetTensor4dDescriptor");
    check_supported(cudnnDeriveBNTensorDescriptor(per_channel_.get(), tensor_.get(), kMode),
                    "cudnnDeriveBNTensorDescriptor");
    cudnnActivationDescriptor_t activation = nullptr;
    check_cudnn(cudnnCreateActivationDescriptor(&activation), "cudnnCreateActivationDescriptor");
    activation_.reset(activation);
    check_cudnn(
        cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0),
        "cudnnSetActivationDescriptor");
    if (residual) z_ = tensor_.get();
    std::size_t forward = 0, backward = 0;
    check_supported(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
                        gpu.handle.get(), kMode, operations_, tensor_.get(), z_, tensor_.get(),
                        per_channel_.get(), activation, &forward),
                    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize");
    check_supported(
        cudnnGetBatchNormalizationBackwardExWorkspaceSize(
            gpu.handle.get(), kMode, operations_, tensor_.get(), tensor_.get(), tensor_.get(), z_,
            tensor_.get(), per_channel_.get(), activation, &backward),
        "cudnnGetBatchNormalizationBackwardExWorkspaceSize");
    check_supported(
        cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
            gpu.handle.get(), kMode, operations_, activation, tensor_.get(), &reserve_bytes_),
        "cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
    workspace_bytes_ = std::max(forward, backward);
    workspace_ = gpu.memory.allocate(workspace_bytes_);
    reserve_ = gpu.memory.allocate(reserve_bytes_);
  }

  void pass() {
    const float one = 1, zero = 0;
    const bool residual = z_ != nullptr;
    check_supported(
        cudnnBatchNormalizationForwardTrainingEx(
            gpu_.handle.get(), kMode, operations_, &one, &zero, tensor_.get(), memory_.x.data(), z_,
            residual ? memory_.residual.data() : nullptr, tensor_.get(), memory_.y.data(),
            per_channel_.get(), memory_.row(Memory::kScale), memory_.row(Memory::kBias), 0, nullptr,
            nullptr, kEps, memory_.row(Memory::kMean), memory_.row(Memory::kInvStd),
            activation_.get(), workspace_.data(), workspace_bytes_, reserve_.data(),
            reserve_bytes_),
        "cudnnBatchNormalizationForwardTrainingEx");
    check_supported(
        cudnnBatchNormalizationBackwardEx(
            gpu_.handle.get(), kMode, operations_, &one, &zero, &one, &zero, tensor_.get(),
            memory_.x.data(), tensor_.get(), memory_.y.data(), tensor_.get(), memory_.grad_y.data(),
            z_, residual ? memory_.grad_residual.data() : nullptr, tensor_.get(),
            memory_.grad_x.data(), per_channel_.get(), memory_.row(Memory::kScale),
            memory_.row(Memory::kBias), memory_.row(Memory::kGradScale),
            memory_.row(Memory::kGradBias), kEps, memory_.row(Memory::kMean),
            memory_.row(Memory::kInvStd), activation_.get(), workspace_.data(), workspace_bytes_,
            reserve_.data(), reserve_bytes_),
        "cudnnBatchNormalizationBackwardEx");
  }

  Moments moments() const { return memory_.moments(); }

 private:
  using Tensor = std::unique_ptr<cudnnTensorStruct, DestroyTensor>;
  static constexpr cudnnBatchNormMode_t kMode = CUDNN_BATCHNORM_SPATIAL_PERSISTENT;

  static Tensor make_tensor() {
    cudnnTensorDescriptor_t tensor = nullptr;
    check_cudnn(cudnnCreateTensorDescriptor(&tensor), "cudnnCreateTensorDescriptor");
    return Tensor(tensor);
  }

  Gpu& gpu_;
  const cudnnBatchNormOps_t operations_;
  Memory memory_;
  Tensor tensor_, per_channel_;
  cudnnTensorDescriptor_t z_ = nullptr;  // of the residual
  std::unique_ptr<cudnnActivationStruct, DestroyActivation> activation_;
  Storage workspace_, reserve_;
  std::size_t workspace_bytes_ = 0, reserve_bytes_ = 0;
};

}  // namespace lockstep::gpu
