// Group BatchNorm as cuDNN sees it, planned for GPUs that need not be there (described_gpu.h).
// cuDNN has one engine for it, which it compiles for the GPU: it proposes none before it has loaded
// libcuda. Where no driver is, the Toolkit's stub of libcuda stands in; with it engines are
// proposed, and no plan can be made of them.

#include "tools/measure/cudnn_batch_norm/group_graph.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "cuda/described_gpu.h"

namespace lockstep::gpu {
namespace {

/// Whether cuDNN will find a libcuda.
bool has_driver_library() {
  static const bool loaded = dlopen("libcuda.so.1", RTLD_NOW) != nullptr ||
                             dlopen(LOCKSTEP_LIBCUDA_STUB, RTLD_NOW) != nullptr;
  return loaded;
}

/// Does it for a Hopper and an Ada, or says why not.
void on_described_gpus(const std::function<void(const CudnnTarget& target)>& body) {
  if (!has_driver_library()) {
    MESSAGE("SKIPPED: neither a driver nor the Toolkit's stub of libcuda is here");
    return;
  }
  for (const std::string& device : {device_json("NVIDIA H200", 900, 132, 232448),
                                    device_json("NVIDIA GeForce RTX 4090", 890, 128, 101376)}) {
    CAPTURE(device);
    const CudnnDescriptor properties = device_properties(device);
    if (properties.get() != nullptr) body({nullptr, &properties});
  }
}

std::size_t engines_of(const GroupNormProblem& problem, bool forward, const CudnnTarget& target) {
  return find_norm_engines(forward ? describe_group_forward(problem, target)
                                   : describe_group_backward(problem, target),
                           target)
      .size();
}

TEST_CASE("cuDNN has engines for group BatchNorm of two and four GPUs, on Hopper and on Ada") {
  on_described_gpus([](const CudnnTarget& target) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
      CAPTURE(std::string(to_string(dtype)));
      for (const int peers : {1, 2, 4}) {
        CAPTURE(peers);
        // The extents of 64 MB in cudnn_batch_norm, and those of a network's layer.
        for (const CudnnExtents& x : {CudnnExtents{1, 64, 500, 1000}, {8, 64, 90, 120}}) {
          const GroupNormProblem problem{x, dtype, peers};
          CHECK(engines_of(problem, true, target) > 0);
          CHECK(engines_of(problem, false, target) > 0);
        }
      }
    }
  });
}

TEST_CASE("cuDNN compiles the first engine: without a driver nothing but loading it fails") {
  on_described_gpus([](const CudnnTarget& target) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
      const GroupNormProblem problem{{1, 64, 500, 1000}, dtype, 2};
      for (const bool forward : {true, false}) {
        auto engines = find_norm_engines(forward ? describe_group_forward(problem, target)
                                                 : describe_group_backward(problem, target),
                                         target);
        REQUIRE(!engines.empty());
        std::string reason;
        const CudnnPlan plan = make_plan(std::move(engines[0]), reason);
        CAPTURE(reason);
        CHECK((plan.plan.get() != nullptr || reason.find("CUDA_DRIVER") != std::string::npos));
      }
    }
  });
}

TEST_CASE("cuDNN has no engine for more peers than a node has, nor for channels of odd bytes") {
  on_described_gpus([](const CudnnTarget& target) {
    for (const bool forward : {true, false}) {
      CAPTURE(forward);
      CHECK(engines_of({{8, 64, 90, 120}, DType::kBFloat16, 33}, forward, target) == 0);
      CHECK(engines_of({{8, 12, 90, 120}, DType::kBFloat16, 2}, forward, target) == 0);
    }
  });
}

}  // namespace
}  // namespace lockstep::gpu
