#pragma once
// Convolutions of one replica by cuDNN, channels-last in fp32. For every geometry, input shape and
// pass the fastest of cuDNN's deterministic engines is found by timing a few and kept; all replicas
// of a process whose GPUs are of one model take the same one, and so compute the same bits.

#include <cudnn.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cudnn/cudnn_graph.h"
#include "kernels/operations/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

struct ConvolutionOptions {
  bool tf32 = false;
  std::size_t most_workspace = std::size_t{512} << 20;  // bytes that an engine may ask for
};

/// Device memory for planning and for running.
struct ConvolutionMemory {
  /// As Backend::allocate.
  std::function<Storage(std::size_t bytes)> allocate;
  /// At least this many bytes, aligned to 256, unset; valid until the next call. Not the context's:
  /// kernels run between.
  std::function<void*(std::size_t bytes)> scratch;
};

/// Owned by a backend, used by its thread with its device current. Tensors of any row stride and
/// alignment, batches of at least 1. `context` and what is called through `memory` outlive it.
class CudnnConvolutions {
 public:
  CudnnConvolutions(int ordinal, const Context& context, ConvolutionMemory memory,
                    const ConvolutionOptions& options);
  ~CudnnConvolutions();

  void prepare(const ConvGeometry& geometry, const Shape& input, bool backward, bool grad_input);
  /// y = x * weight.
  void forward(const ConvGeometry& geometry, const Tensor& x, const float* weight, const Tensor& y);
  void backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                     const Tensor& grad_x);
  /// grad_weight += ...
  void backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                        float* grad_weight);

 private:
  struct DestroyHandle {
    void operator()(cudnnContext* handle) const { cudnnDestroy(handle); }
  };
  /// Which of cuDNN's engines: the same for the same problem, library and GPU model.
  struct Choice {
    WeightOrder order = WeightOrder::kOutInTaps;
    bool fallback = false;
    std::size_t index = 0;  // in find_engines
  };
  /// A plan's tensors by address. They rarely change: a layer's tensors lie where they lie.
  struct Binding {
    std::array<void*, 4> addresses{};  // input, output, weight, workspace
    CudnnDescriptor pack;
  };
  struct Plan {
    ConvProblem problem;
    WeightOrder order = WeightOrder::kOutInTaps;
    CudnnPlan cudnn;
    std::vector<Binding> bindings;
    std::size_t next_binding = 0;
  };
  struct Operands {
    Tensor x, y;  // the input and its gradient, the output and its gradient
    float* weight = nullptr;
  };
  struct Choices;

  static Choices& choices();
  CudnnTarget target() const { return {handle_.get(), nullptr}; }

  ConvProblem problem(const ConvGeometry& geometry, const Shape& input, ConvPass pass) const;
  Plan& plan_for(const ConvProblem& problem);
  Plan make_chosen(const ConvProblem& problem, const Choice& choice);
  Choice choose(const ConvProblem& problem);
  Choice fastest(const ConvProblem& problem, bool fallback, std::string& reason);
  float milliseconds(Plan& plan, const Operands& operands);

  void run(Plan& plan, const Operands& operands, void* scratch);
  void take_weight(const Plan& plan, const float* from, float* to);
  void add_weight_gradient(const Plan& plan, const float* from, float* to);
  void execute(Plan& plan, const std::array<void*, 4>& addresses);

  const int ordinal_;
  const Context& context_;
  const ConvolutionMemory memory_;
  const ConvolutionOptions options_;
  const std::string model_;  // of the GPU and the library
  std::unique_ptr<cudnnContext, DestroyHandle> handle_;
  std::vector<std::unique_ptr<Plan>> plans_;  // a few dozen: a linear search is enough
};

}  // namespace lockstep::gpu
