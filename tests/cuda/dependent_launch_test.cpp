// On a GPU: a captured stream keeps the early starts of BatchNorm's kernels as edges of the graph.

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda_backend.h"
#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {
namespace {

constexpr std::int64_t kRows = 96, kChannels = 24;

/// BatchNorm's memory on the first GPU.
struct Call {
  CudaBackend backend{Device{DeviceKind::kCuda, 0, 0}};
  Storage memory = backend.allocate((4 * kRows + 16) * kChannels * sizeof(float));

  Tensor rows(int index) const {
    return {static_cast<float*>(memory.data()) + index * kRows * kChannels, {kRows, kChannels}};
  }
  float* statistics(int index) const {
    return static_cast<float*>(memory.data()) + (4 * kRows + index) * kChannels;
  }

  void issue() {
    const StatSlot moments{kRows, statistics(0)}, sums{kRows, statistics(2)};
    backend.norms().batch_norm_moments(rows(0), statistics(0), 1);
    BatchNormForward forward;
    forward.x = rows(0);
    forward.y = rows(1);
    forward.slots = {&moments, 1};
    forward.saved = {statistics(4)};
    backend.norms().batch_norm_forward(forward);
    BatchNormBackwardReduce reduce;
    reduce.x = rows(0);
    reduce.grad_y = rows(1);
    reduce.saved = {statistics(4)};
    reduce.sums = statistics(2);
    backend.norms().batch_norm_backward_reduce(reduce);
    BatchNormBackwardApply apply;
    apply.x = rows(0);
    apply.grad_y = rows(1);
    apply.saved = {statistics(4)};
    apply.slots = {&sums, 1};
    apply.grad_x = rows(2);
    backend.norms().batch_norm_backward_apply(apply);
  }

  std::vector<float> results() {
    std::vector<float> values(static_cast<std::size_t>(2 * kRows * kChannels));
    backend.download(values.data(), {rows(1).data, {2 * kRows, kChannels}});
    backend.synchronize();
    return values;
  }
};

/// Edges of `graph`: of all kinds, and those that let the later kernel start early.
struct Edges {
  std::size_t all = 0, programmatic = 0;
};

Edges edges_of(cudaGraph_t graph) {
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  const auto get = cudaGraphGetEdges;
#else
  const auto get = cudaGraphGetEdges_v2;
#endif
  check_cuda(get(graph, nullptr, nullptr, nullptr, &count), "cudaGraphGetEdges");
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  check_cuda(get(graph, from.data(), to.data(), data.data(), &count), "cudaGraphGetEdges");
  const auto programmatic =
      std::count_if(data.begin(), data.end(), [](const cudaGraphEdgeData& edge) {
        return edge.type == cudaGraphDependencyTypeProgrammatic;
      });
  return {count, static_cast<std::size_t>(programmatic)};
}

TEST_CASE("early starts of BatchNorm's kernels survive the capture of their stream") {
  if (device_count() == 0 || describe_device(0).major < 9) {
    MESSAGE("SKIPPED: no CUDA device of compute capability 9.0 or later answers");
    return;
  }
  Call call;
  std::vector<float> x(static_cast<std::size_t>(kRows * kChannels));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) / 50;
  call.backend.upload(call.rows(0), x.data());
  call.issue();
  const std::vector<float> issued = call.results();
  const Stream stream = call.backend.stream();
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin");
  call.issue();
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph), "end");
  const Edges edges = edges_of(graph);
  CHECK(edges.all == 3);
  CHECK(edges.programmatic == 3);
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  call.backend.fill(call.rows(1), 0);
  call.backend.fill(call.rows(2), 0);
  for (int i = 0; i < 100; ++i) check_cuda(cudaGraphLaunch(executable, stream), "launch");
  CHECK(call.results() == issued);
  check_cuda(cudaGraphExecDestroy(executable), "destroy");
  check_cuda(cudaGraphDestroy(graph), "destroy");
}

}  // namespace
}  // namespace lockstep::gpu
