#include "tools/measure/cudnn_batch_norm/group_graph.h"

#include <iterator>

namespace lockstep::gpu {
namespace {

CudnnDescriptor describe_data(std::int64_t id, const GroupNormProblem& problem) {
  return describe_channels_last(id, cudnn_type(problem.dtype), problem.x);
}

CudnnDescriptor describe_per_channel(std::int64_t id, const GroupNormProblem& problem) {
  return describe_channels_last(id, CUDNN_DATA_FLOAT, {1, problem.x[1], 1, 1});
}

CudnnDescriptor describe_eps() {
  return describe_channels_last(kNormEps, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, true);
}

void set_peers(CudnnDescriptor& operation, cudnnBackendAttributeName_t name,
               const GroupNormProblem& problem) {
  if (problem.peers == 1) return;
  std::vector<CudnnDescriptor> buffers;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int peer = 0; peer < problem.peers; ++peer) {
    buffers.push_back(describe_channels_last(kPeerId + peer, CUDNN_DATA_FLOAT,
                                             {problem.peers, 4 * problem.x[1], 1, 1}));
    raw.push_back(buffers.back().get());
  }
  operation.set_all<cudnnBackendDescriptor_t>(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw);
}

}  // namespace

CudnnDescriptor describe_group_forward(const GroupNormProblem& problem, const CudnnTarget& target) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_BATCH_NORM);
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE,
                CUDNN_NORM_FWD_TRAINING);
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, describe_data(kNormX, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, describe_per_channel(kNormMean, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC,
                describe_per_channel(kNormInvStd, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC,
                describe_per_channel(kNormScale, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, describe_per_channel(kNormBias, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, describe_eps());
  operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, describe_data(kNormY, problem));
  set_peers(operation, CUDNN_ATTR_OPERATION_NORM_FWD_PEER_STAT_DESCS, problem);
  operation.finalize("describing the forward pass of a group BatchNorm");
  return describe_graph(operation, target);
}

CudnnDescriptor describe_group_backward(const GroupNormProblem& problem,
                                        const CudnnTarget& target) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, CUDNN_BATCH_NORM);
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, describe_data(kNormX, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, describe_per_channel(kNormMean, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC,
                describe_per_channel(kNormInvStd, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, describe_data(kNormGradY, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC,
                describe_per_channel(kNormScale, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_EPSILON_DESC, describe_eps());
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC,
                describe_per_channel(kNormGradScale, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC,
                describe_per_channel(kNormGradBias, problem));
  operation.set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, describe_data(kNormGradX, problem));
  set_peers(operation, CUDNN_ATTR_OPERATION_NORM_BWD_PEER_STAT_DESCS, problem);
  operation.finalize("describing the backward pass of a group BatchNorm");
  return describe_graph(operation, target);
}

std::vector<CudnnDescriptor> find_norm_engines(const CudnnDescriptor& graph,
                                               const CudnnTarget& target) {
  if (graph.get() == nullptr) return {};
  std::vector<CudnnDescriptor> engines = ask_heuristics(graph, target, CUDNN_HEUR_MODE_A);
  std::vector<CudnnDescriptor> last = ask_heuristics(graph, target, CUDNN_HEUR_MODE_FALLBACK);
  engines.insert(engines.end(), std::make_move_iterator(last.begin()),
                 std::make_move_iterator(last.end()));
  return engines;
}

}  // namespace lockstep::gpu
