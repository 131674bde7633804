#pragma once
// Operations, convolutions above all, described to cuDNN's graph interface (cudnn_graph.h): one
// operation per graph, the engines that cuDNN proposes for it, and plans made of them. Nothing here
// runs on a GPU.

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/convolutions.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// A descriptor of cuDNN's backend interface, owned.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

  /// One value, or all of `values`.
  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set_values(name, type, 1, &value);
  }
  template <typename T>
  void set_all(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::span<const T> values) {
    set_values(name, type, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    const cudnnBackendDescriptor_t raw = value.get();
    set_values(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }

  /// Ends the description: a descriptor never changes afterwards. Throws Error when it is wrong.
  void finalize(const char* what);
  /// The same for one that cuDNN may have no implementation for.
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(get()); }

 private:
  struct Destroy {
    void operator()(void* descriptor) const { cudnnBackendDestroyDescriptor(descriptor); }
  };

  void set_values(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::int64_t count, const void* values);

  std::unique_ptr<void, Destroy> descriptor_;
};

/// Order of the weights in memory; activations are channels-last in both.
enum class WeightOrder : std::uint8_t {
  kOutInTaps,  // PyTorch's [out, in / groups, kh, kw]
  kOutTapsIn,  // [out, kh, kw, in / groups]
};

/// Ids of the tensors of every graph, in a variant pack.
enum : std::int64_t { kInputId = 1, kOutputId = 2, kWeightId = 3 };

/// One pass of a convolution. Input, output and weights have one type; products are summed in fp32.
struct ConvProblem {
  ConvGeometry geometry;
  Shape input;  // dense, its batch at least 1
  ConvPass pass = ConvPass::kForward;
  DType dtype = DType::kFloat32;  // or kBFloat16, kFloat16
  bool tf32 = false;  // of fp32: operands rounded to 10 bits of mantissa, for tensor cores

  friend bool operator==(const ConvProblem&, const ConvProblem&) = default;
};

/// For whom plans are made: a handle, that is the GPU it was made for, or with a null handle the
/// GPU that a description (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) tells of, which need not be there.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* properties = nullptr;
};

/// Extents in cuDNN's order: batch, channels, height, width.
using CudnnExtents = std::array<std::int64_t, 4>;

/// cuDNN's name for fp32, bf16 or fp16; throws Error for another type.
cudnnDataType_t cudnn_type(DType dtype);
/// A dense tensor, channels last. `by_value`: read from the host when the plan is executed.
CudnnDescriptor describe_channels_last(std::int64_t id, cudnnDataType_t type,
                                       const CudnnExtents& extents, bool by_value = false);
/// A graph of one finalized operation. Null when no engine of cuDNN can take it.
CudnnDescriptor describe_graph(const CudnnDescriptor& operation, const CudnnTarget& target);
/// The configurations of engines that cuDNN proposes for a graph, the most promising first.
std::vector<CudnnDescriptor> ask_heuristics(const CudnnDescriptor& graph, const CudnnTarget& target,
                                            cudnnBackendHeurMode_t mode);

/// The engines of cuDNN that give the same bits in every run and round operands no further than the
/// problem's type (or TF32, where asked for), the most promising first. The same list in every
/// process with the same library and GPU model. `fallback`: those of the last resort. Throws Error
/// for a type that convolutions cannot have.
std::vector<CudnnDescriptor> find_engines(const ConvProblem& problem, WeightOrder order,
                                          const CudnnTarget& target, bool fallback);

/// Whether cuDNN says this of an engine of such a list.
bool has_numerical_note(const CudnnDescriptor& engine, cudnnBackendNumericalNote_t note);

/// An engine by what makes it compute as it does: its number in cuDNN and its knobs, as cuDNN's
/// documentation and logs name both. So it is found again wherever a list has it.
struct EngineChoice {
  struct Knob {
    std::int64_t type = 0, value = 0;  // cudnnBackendKnobType_t
    friend bool operator==(const Knob&, const Knob&) = default;
  };
  WeightOrder order = WeightOrder::kOutInTaps;
  std::int64_t number = 0;
  std::vector<Knob> knobs = {};

  friend bool operator==(const EngineChoice&, const EngineChoice&) = default;
};

/// Identifies one of find_engines's list for `order`.
EngineChoice identify(const CudnnDescriptor& engine, WeightOrder order);

/// "out_taps_in engine 67 knobs 2=0 5=1", the name that the file of choices
/// (backend/conv/autotuner.h) has for it.
std::string to_string(const EngineChoice& choice);
/// Nothing for a text of another form.
std::optional<EngineChoice> parse_engine(const std::string& text);

/// What cuDNN executes.
struct CudnnPlan {
  CudnnDescriptor engine;
  CudnnDescriptor plan;
  std::size_t workspace = 0;       // bytes
  std::int64_t engine_number = 0;  // cuDNN's own, as its documentation and logs name engines
};

/// A plan with its descriptors, or one with a null plan when the engine does not take the problem;
/// `reason` then says why.
CudnnPlan make_plan(CudnnDescriptor engine, std::string& reason);

/// Tensors of a plan by address, in the order input, output, weight. REQUIRES: aligned to
/// kCudnnAlignment.
CudnnDescriptor make_variant_pack(std::span<void* const> tensors, void* workspace);
/// The same of the tensors of any graph, by their ids.
CudnnDescriptor make_variant_pack(std::span<const std::int64_t> ids, std::span<void* const> tensors,
                                  void* workspace);

inline constexpr std::int64_t kCudnnAlignment = 16;  // bytes

}  // namespace lockstep::gpu
