#include "kernels/transport/step_graph.h"

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

void ReleaseGraph::operator()(CUgraph_st* graph) const {
  static_cast<void>(cudaGraphDestroy(graph));
}
void ReleaseGraphExec::operator()(CUgraphExec_st* graph) const {
  static_cast<void>(cudaGraphExecDestroy(graph));
}

StepGraph::StepGraph(std::vector<int> ordinals)
    : ordinals_(std::move(ordinals)), arrived_(ordinals_.size()) {}

void StepGraph::attach(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  arrived_[index] = std::make_unique<Event>(ordinals_[index]);
  if (rank != 0) return;
  begun_ = std::make_unique<Event>(ordinals_[0]);
  done_ = std::make_unique<Event>(ordinals_[0]);
}

// Relaxed: the other ranks' threads issue into the capture as well, and threads that have nothing
// to do with it may allocate meanwhile.
void StepGraph::begin(Stream stream) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed),
             "cudaStreamBeginCapture");
  capturing_ = true;
  begun_->record(stream);
}

void StepGraph::join(GpuOperations& backend) { backend.wait_for(*begun_); }

void StepGraph::finish(Stream stream) {
  wait_for_others(stream);
  cudaGraph_t captured = nullptr;
  capturing_ = false;
  const cudaError_t status = cudaStreamEndCapture(stream, &captured);
  const std::unique_ptr<CUgraph_st, ReleaseGraph> graph(captured);
  if (status != cudaSuccess || captured == nullptr) {
    static_cast<void>(cudaGetLastError());
    throw Error(concat("cuda:", ordinals_[0], ": the step cannot be captured as a CUDA graph (",
                       cudaGetErrorName(status), "); try LOCKSTEP_DEPENDENT_LAUNCH=0 in the ",
                       "environment, or use run.cuda_graph = false"));
  }
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, captured, 0), "cudaGraphInstantiate");
  graph_.reset(executable);
  check_cuda(cudaGraphUpload(executable, stream), "cudaGraphUpload");
}

void StepGraph::abandon(Stream stream) noexcept {
  if (!capturing_) return;
  const std::lock_guard lock(turn_);  // others may still be on their way out
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream, &captured));
  static_cast<void>(cudaGetLastError());
  if (captured != nullptr) static_cast<void>(cudaGraphDestroy(captured));
}

void StepGraph::gather(Stream stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &before, nullptr, &count),
             "cudaStreamGetCaptureInfo");
#else
  check_cuda(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &before, &count),
             "cudaStreamGetCaptureInfo");
#endif
  cudaGraphNode_t node = nullptr;
  check_cuda(cudaGraphAddEmptyNode(&node, graph, before, count), "cudaGraphAddEmptyNode");
#if CUDART_VERSION >= 13000
  check_cuda(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1,
                                                 cudaStreamSetCaptureDependencies),
             "cudaStreamUpdateCaptureDependencies");
#else
  check_cuda(
      cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies),
      "cudaStreamUpdateCaptureDependencies");
#endif
}

void StepGraph::arrive(int rank, Stream stream) {
  arrived_[static_cast<std::size_t>(rank)]->record(stream);
}

void StepGraph::launch(Stream stream) {
  LOCKSTEP_CHECK(graph_ != nullptr, "no step has been recorded");
  wait_for_others(stream);
  check_cuda(cudaGraphLaunch(graph_.get(), stream), "cudaGraphLaunch");
  done_->record(stream);
}

void StepGraph::follow(Stream stream) const { done_->make_wait(stream); }

void StepGraph::wait_for_others(Stream stream) const {
  for (int rank = 1; rank < ranks(); ++rank) {
    arrived_[static_cast<std::size_t>(rank)]->make_wait(stream);
  }
}

}  // namespace lockstep::gpu
