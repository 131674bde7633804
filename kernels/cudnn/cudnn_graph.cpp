#include "kernels/cudnn/cudnn_graph.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "kernels/cudnn/check_cudnn.h"

namespace lockstep::gpu {
namespace {

constexpr std::array kOrders = {"out_in_taps", "out_taps_in"};  // [WeightOrder]

CudnnExtents channels_last_strides(const CudnnExtents& e) {
  return {e[1] * e[2] * e[3], 1, e[3] * e[1], e[1]};
}
CudnnExtents channels_first_strides(const CudnnExtents& e) {
  return {e[1] * e[2] * e[3], e[2] * e[3], e[3], 1};
}

CudnnDescriptor describe_tensor(std::int64_t id, cudnnDataType_t type, const CudnnExtents& extents,
                                const CudnnExtents& strides, bool by_value = false) {
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.set_all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, extents);
  tensor.set_all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kCudnnAlignment);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  if (by_value) tensor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
  tensor.finalize("describing a tensor");
  return tensor;
}

CudnnDescriptor describe_activation(std::int64_t id, DType dtype, const Shape& shape) {
  const CudnnExtents extents{shape.batch(), shape.channels(), shape.height(), shape.width()};
  return describe_channels_last(id, cudnn_type(dtype), extents);
}

// The number of groups is the input's channels over the weights'.
CudnnDescriptor describe_weight(const ConvGeometry& g, DType dtype, WeightOrder order) {
  const CudnnExtents extents{g.out_channels, g.in_channels / g.groups, g.kernel_h, g.kernel_w};
  return describe_tensor(kWeightId, cudnn_type(dtype), extents,
                         order == WeightOrder::kOutInTaps ? channels_first_strides(extents)
                                                          : channels_last_strides(extents));
}

CudnnDescriptor describe_window(const ConvGeometry& g) {
  using Pair = std::array<std::int64_t, 2>;
  CudnnDescriptor window(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const Pair padding{g.padding_h, g.padding_w};
  const Pair dilation{g.dilation_h, g.dilation_w};
  const Pair stride{g.stride_h, g.stride_w};
  window.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  window.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
             CUDNN_CROSS_CORRELATION);
  window.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  window.set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, padding);
  window.set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, padding);
  window.set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dilation);
  window.set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, stride);
  window.finalize("describing a convolution");
  return window;
}

/// How the three passes are called in cuDNN.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, w, y, window, alpha, beta;
};

OperationNames operation_names(ConvPass pass) {
  switch (pass) {
    case ConvPass::kForward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case ConvPass::kBackwardData:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvPass::kBackwardWeights:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

/// Null when no engine of cuDNN can take such a graph.
CudnnDescriptor make_graph(const ConvProblem& problem, WeightOrder order,
                           const CudnnTarget& target) {
  const OperationNames names = operation_names(problem.pass);
  const ConvGeometry& g = problem.geometry;
  CudnnDescriptor operation(names.type);
  operation.set(names.x, describe_activation(kInputId, problem.dtype, problem.input));
  operation.set(names.w, describe_weight(g, problem.dtype, order));
  operation.set(names.y,
                describe_activation(kOutputId, problem.dtype, g.output_shape(problem.input)));
  operation.set(names.window, describe_window(g));
  operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0F);
  operation.set(names.beta, CUDNN_TYPE_FLOAT, 0.0F);
  operation.finalize("describing a pass of a convolution");
  return describe_graph(operation, target);
}

template <typename Note, std::size_t kMost>
bool has_note(const CudnnDescriptor& engine, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, std::span<const Note> notes) {
  std::array<Note, kMost> found{};
  std::int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(engine.get(), name, type, kMost, &count, found.data()),
              "reading an engine's notes");
  const auto end = found.begin() + std::min<std::int64_t>(count, kMost);
  return std::find_first_of(found.begin(), end, notes.begin(), notes.end()) != end;
}

/// What cuDNN says of one engine.
class EngineNotes {
 public:
  explicit EngineNotes(const CudnnDescriptor& config) : engine_(CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    cudnnBackendDescriptor_t raw = engine_.get();
    std::int64_t count = 0;
    check_cudnn(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
                "reading an engine");
  }

  bool any(std::span<const cudnnBackendNumericalNote_t> notes) const {
    return has_note<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT>(
        engine_, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, notes);
  }
  /// CUDNN_ATTR_ENGINE_GLOBAL_INDEX.
  std::int64_t number() const {
    std::int64_t count = 0, number = 0;
    check_cudnn(cudnnBackendGetAttribute(engine_.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                         CUDNN_TYPE_INT64, 1, &count, &number),
                "reading an engine's number");
    return number;
  }
  bool compiles_at_run_time() const {
    constexpr std::array notes{CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION};
    return has_note<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT>(
        engine_, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, notes);
  }

 private:
  CudnnDescriptor engine_;
};

// Winograd's larger tiles and sums in reduced precision lose digits that a direct sum keeps; a tile
// of 4x4 loses fewer than TF32 does. On tensor cores fp32 is TF32, while narrower types are
// multiplied exactly. An engine that converts its inputs may round them to fp16.
bool is_exact_enough(const EngineNotes& notes, const ConvProblem& problem) {
  constexpr std::array never{
      CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
      CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
      CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};
  constexpr std::array not_in_exact_fp32{CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                         CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4};
  if (notes.any(never)) return false;
  return problem.dtype != DType::kFloat32 || problem.tf32 || !notes.any(not_in_exact_fp32);
}

/// The descriptors of an engine's knobs as it is configured.
std::vector<CudnnDescriptor> list_knobs(const CudnnDescriptor& engine) {
  std::vector<CudnnDescriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  std::int64_t count = 0;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    raw.push_back(knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).get());
  }
  check_cudnn(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<std::int64_t>(raw.size()), &count, raw.data()),
              "listing an engine's knobs");
  knobs.resize(static_cast<std::size_t>(count));
  return knobs;
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  check_cudnn(cudnnBackendCreateDescriptor(type, &descriptor), "cudnnBackendCreateDescriptor");
  descriptor_.reset(descriptor);
}

void CudnnDescriptor::finalize(const char* what) { check_cudnn(try_finalize(), what); }

void CudnnDescriptor::set_values(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 std::int64_t count, const void* values) {
  check_cudnn(cudnnBackendSetAttribute(get(), name, type, count, values),
              "cudnnBackendSetAttribute");
}

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDNN_DATA_FLOAT;
    case DType::kBFloat16:
      return CUDNN_DATA_BFLOAT16;
    case DType::kFloat16:
      return CUDNN_DATA_HALF;
    case DType::kUInt8:
    case DType::kUInt16:
      break;
  }
  throw Error(concat("expected fp32, bf16 or fp16 for cuDNN, got ", to_string(dtype)));
}

CudnnDescriptor describe_channels_last(std::int64_t id, cudnnDataType_t type,
                                       const CudnnExtents& extents, bool by_value) {
  return describe_tensor(id, type, extents, channels_last_strides(extents), by_value);
}

CudnnDescriptor describe_graph(const CudnnDescriptor& operation, const CudnnTarget& target) {
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  if (target.handle != nullptr) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  }
  const cudnnStatus_t status = graph.try_finalize();
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) return {};
  check_cudnn(status, "building an operation graph");
  return graph;
}

std::vector<CudnnDescriptor> ask_heuristics(const CudnnDescriptor& graph, const CudnnTarget& target,
                                            cudnnBackendHeurMode_t mode) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target.handle == nullptr) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  }
  const cudnnStatus_t status = heuristics.try_finalize();
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) return {};
  check_cudnn(status, "asking for engines");

  std::int64_t count = 0;
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
              "counting engines");
  std::vector<CudnnDescriptor> engines;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    raw.push_back(engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  }
  if (count == 0) return engines;
  check_cudnn(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()),
              "listing engines");
  engines.resize(static_cast<std::size_t>(count));
  return engines;
}

std::vector<CudnnDescriptor> find_engines(const ConvProblem& problem, WeightOrder order,
                                          const CudnnTarget& target, bool fallback) {
  const CudnnDescriptor graph = make_graph(problem, order, target);
  if (graph.get() == nullptr) return {};
  std::vector<CudnnDescriptor> engines, compiled;
  for (CudnnDescriptor& engine :
       ask_heuristics(graph, target, fallback ? CUDNN_HEUR_MODE_FALLBACK : CUDNN_HEUR_MODE_A)) {
    const EngineNotes notes(engine);
    if (!is_exact_enough(notes, problem)) continue;
    // Compiling takes a second, and a network has a hundred plans to choose: the others come first.
    (notes.compiles_at_run_time() ? compiled : engines).push_back(std::move(engine));
  }
  for (CudnnDescriptor& engine : compiled) engines.push_back(std::move(engine));
  return engines;
}

CudnnPlan make_plan(CudnnDescriptor engine, std::string& reason) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
  const cudnnStatus_t status = plan.try_finalize();
  if (status != CUDNN_STATUS_SUCCESS) {
    reason = describe_cudnn(status);
    static_cast<void>(cudaGetLastError());  // what an engine that gives up may leave behind
    return {};
  }
  std::int64_t count = 0, workspace = 0;
  check_cudnn(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &count, &workspace),
              "reading a plan's workspace");
  const std::int64_t number = EngineNotes(engine).number();
  return {std::move(engine), std::move(plan), static_cast<std::size_t>(workspace), number};
}

CudnnDescriptor make_variant_pack(std::span<void* const> tensors, void* workspace) {
  constexpr std::array<std::int64_t, 3> ids{kInputId, kOutputId, kWeightId};
  return make_variant_pack(ids, tensors, workspace);
}

CudnnDescriptor make_variant_pack(std::span<const std::int64_t> ids, std::span<void* const> tensors,
                                  void* workspace) {
  LOCKSTEP_CHECK(tensors.size() == ids.size(), "expected ", ids.size(), " tensors, got ",
                 tensors.size());
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set_all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
  pack.set_all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, tensors);
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize("binding tensors");
  return pack;
}

bool has_numerical_note(const CudnnDescriptor& engine, cudnnBackendNumericalNote_t note) {
  return EngineNotes(engine).any(std::span(&note, 1));
}

EngineChoice identify(const CudnnDescriptor& engine, WeightOrder order) {
  EngineChoice choice{order, EngineNotes(engine).number()};
  for (const CudnnDescriptor& knob : list_knobs(engine)) {
    cudnnBackendKnobType_t type{};
    std::int64_t count = 0, value = 0;
    check_cudnn(cudnnBackendGetAttribute(knob.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                         CUDNN_TYPE_KNOB_TYPE, 1, &count, &type),
                "reading a knob");
    check_cudnn(cudnnBackendGetAttribute(knob.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                         CUDNN_TYPE_INT64, 1, &count, &value),
                "reading a knob's value");
    choice.knobs.push_back({type, value});
  }
  return choice;
}

std::string to_string(const EngineChoice& choice) {
  std::string text =
      concat(kOrders[static_cast<std::size_t>(choice.order)], " engine ", choice.number);
  if (!choice.knobs.empty()) text += " knobs";
  for (const EngineChoice::Knob& knob : choice.knobs) {
    text += concat(" ", knob.type, "=", knob.value);
  }
  return text;
}

std::optional<EngineChoice> parse_engine(const std::string& text) {
  std::istringstream stream(text);
  std::string order, word;
  EngineChoice choice;
  stream >> order >> word >> choice.number;
  if (!stream) return std::nullopt;
  choice.order = order == kOrders[0] ? WeightOrder::kOutInTaps : WeightOrder::kOutTapsIn;
  if (stream >> word) {
    EngineChoice::Knob knob;
    for (char equals = 0; stream >> knob.type >> equals >> knob.value;) {
      choice.knobs.push_back(knob);
    }
  }
  if (to_string(choice) != text) return std::nullopt;
  return choice;
}

}  // namespace lockstep::gpu
