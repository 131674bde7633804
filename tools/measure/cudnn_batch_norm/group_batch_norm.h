#pragma once
// cuDNN's group BatchNorm: one GPU's part of it.

#include <string>
#include <utility>
#include <vector>

#include "tools/measure/cudnn_batch_norm/gpu_case.h"
#include "tools/measure/cudnn_batch_norm/group_graph.h"

namespace lockstep::gpu {

/// One GPU's part of a group BatchNorm.
class GroupMember {
 public:
  GroupMember(Gpu& gpu, const BatchNormWork& work, int gpus)
      : gpu_(gpu),
        memory_(gpu, work, shift_of(gpu.ordinal), false),
        forward_peers_(gpu.memory.allocate(peer_bytes(work, gpus))),
        backward_peers_(gpu.memory.allocate(peer_bytes(work, gpus))) {
    const GroupNormProblem problem{extents_of(work), work.dtype, gpus};
    const CudnnTarget target{gpu.handle.get(), nullptr};
    forward_ = plan(describe_group_forward(problem, target), target, "forward");
    backward_ = plan(describe_group_backward(problem, target), target, "backward");
    workspace_ = gpu.memory.allocate(std::max(forward_.workspace, backward_.workspace));
  }

  /// `members`: in the order of their GPUs' numbers, which cuDNN takes for the ranks.
  void bind(const std::vector<std::unique_ptr<GroupMember>>& members) {
    std::vector<std::pair<std::int64_t, void*>> forward = {{kNormX, memory_.x.data()},
                                                           {kNormY, memory_.y.data()},
                                                           row(kNormScale, Memory::kScale),
                                                           row(kNormBias, Memory::kBias),
                                                           row(kNormMean, Memory::kMean),
                                                           row(kNormInvStd, Memory::kInvStd),
                                                           {kNormEps, &eps_}};
    std::vector<std::pair<std::int64_t, void*>> backward = {{kNormX, memory_.x.data()},
                                                            {kNormGradY, memory_.grad_y.data()},
                                                            {kNormGradX, memory_.grad_x.data()},
                                                            row(kNormScale, Memory::kScale),
                                                            row(kNormMean, Memory::kMean),
                                                            row(kNormInvStd, Memory::kInvStd),
                                                            row(kNormGradScale, Memory::kGradScale),
                                                            row(kNormGradBias, Memory::kGradBias),
                                                            {kNormEps, &eps_}};
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::int64_t id = kPeerId + static_cast<std::int64_t>(i);
      forward.emplace_back(id, members[i]->forward_peers_.data());
      backward.emplace_back(id, members[i]->backward_peers_.data());
    }
    forward_tensors_ = pack(forward);
    backward_tensors_ = pack(backward);
  }

  void pass() {
    check_cudnn(cudnnBackendExecute(gpu_.handle.get(), forward_.plan.get(), forward_tensors_.get()),
                "the forward pass of a group BatchNorm");
    check_cudnn(
        cudnnBackendExecute(gpu_.handle.get(), backward_.plan.get(), backward_tensors_.get()),
        "the backward pass of a group BatchNorm");
  }

  Moments moments() const { return memory_.moments(); }
  const Gpu& gpu() const { return gpu_; }

 private:
  /// Of an exchange buffer (group_graph.h).
  static std::size_t peer_bytes(const BatchNormWork& work, int gpus) {
    return 4 * sizeof(float) * static_cast<std::size_t>(work.channels * gpus);
  }

  std::pair<std::int64_t, void*> row(std::int64_t id, Memory::Row index) const {
    return {id, memory_.row(index)};
  }

  static CudnnPlan plan(const CudnnDescriptor& graph, const CudnnTarget& target, const char* pass) {
    std::string reason = "cuDNN proposes no engine";
    for (CudnnDescriptor& engine : find_norm_engines(graph, target)) {
      CudnnPlan plan = make_plan(std::move(engine), reason);
      if (plan.plan.get() != nullptr) return plan;
    }
    throw NotSupported(concat("group BatchNorm, ", pass, ": ", reason));
  }

  CudnnDescriptor pack(const std::vector<std::pair<std::int64_t, void*>>& tensors) const {
    std::vector<std::int64_t> ids;
    std::vector<void*> addresses;
    for (const auto& [id, address] : tensors) {
      ids.push_back(id);
      addresses.push_back(address);
    }
    return make_variant_pack(ids, addresses, workspace_.data());
  }

  Gpu& gpu_;
  Memory memory_;
  Storage forward_peers_, backward_peers_, workspace_;
  CudnnPlan forward_, backward_;
  CudnnDescriptor forward_tensors_, backward_tensors_;
  float eps_ = static_cast<float>(kEps);
};

}  // namespace lockstep::gpu
