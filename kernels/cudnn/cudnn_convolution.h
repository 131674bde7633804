#pragma once
// Convolutions of one replica by cuDNN, channels-last in fp32, bf16 or fp16, each geometry, input
// shape, type and pass by the engine that engine_search.h finds. Weights and their gradients are
// fp32 in PyTorch's order outside; a plan gets copies of the weights in its order, rounded to its
// type, and what it computes of their gradients is added up in fp32.

#include <cudnn.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cudnn/cudnn_graph.h"
#include "kernels/cudnn/engine_search.h"
#include "kernels/operations/launchers.h"
#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Device memory for planning and for running.
struct ConvolutionMemory {
  /// As Backend::allocate.
  std::function<Storage(std::size_t bytes)> allocate;
  /// At least this many bytes, aligned to 256, unset; valid until the next call. Not the context's:
  /// kernels run between.
  std::function<void*(std::size_t bytes)> scratch;
};

/// Owned by a backend, used by its thread. Tensors of any row stride and alignment. With
/// Context::sums_by_image plans are for one image and run once for each, so that an image comes to
/// the same bits however many there are.
class CudnnConvolutions final : public ConvolutionOperations {
 public:
  /// `context` and what is called through `memory` outlive the object. `tf32`: of fp32 tensors.
  CudnnConvolutions(const Device& device, const Context& context, ConvolutionMemory memory,
                    bool tf32);
  ~CudnnConvolutions() override;

  /// Where there is no backward pass, the clock chooses nothing: images to evaluate may come in
  /// hundreds of sizes.
  void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype, bool backward,
                      bool grad_input) override;
  /// One launch for all that the forward pass and the gradients of inputs need. Allocates for
  /// weights that are new, and for the gradients that are left.
  void prepack_conv2d_weights(std::span<const ConvWeights> weights) override;
  void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                      const float* bias, const Tensor& y) override;
  void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                            const Tensor& grad_x) override;
  void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                               float* grad_weight, float* grad_bias) override;
  /// One launch for all that cuDNN has left in its order and type.
  void finish_conv2d_gradients() override;
  /// Throws Error: cuDNN's plans end with the convolution.
  void conv2d_inference(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                        const float* bias, const BatchNormInference& normalization) override;
  std::vector<std::string> conv2d_algorithms() const override;

 private:
  struct DestroyHandle {
    int ordinal;  // cuDNN wants the device of the handle to be the thread's current one
    void operator()(cudnnContext* handle) const;
  };
  /// A plan's tensors by address. They rarely change: a layer's tensors lie where they lie.
  struct Binding {
    std::array<void*, 4> addresses{};  // input, output, weight, workspace
    CudnnDescriptor pack;
  };
  struct Plan {
    ConvProblem problem;
    FoundPlan found;
    bool timed = false;  // the clock was asked
    std::vector<Binding> bindings = {};
    std::size_t next_binding = 0;
    std::int64_t runs = 1;  // of a pass, at most: each has addresses of its own
  };
  struct Operands {
    Tensor x, y;  // the input and its gradient, the output and its gradient
    float* weight = nullptr;
  };
  /// Weights as the plans of an order and a type want them.
  struct Packed {
    const float* weight = nullptr;
    Matrices shape;
    DType dtype = DType::kFloat32;
    Storage storage;
    bool current = false;  // since the last prepack()
  };
  /// A gradient as cuDNN has left it, in memory of left_memory_.
  struct LeftGradient {
    Transposition home;
    DType dtype = DType::kFloat32;
  };
  using Handle = std::unique_ptr<cudnnContext, DestroyHandle>;
  static Handle make_handle(int ordinal, Stream stream);

  /// The problem of as many images as a plan takes at a time.
  ConvProblem problem(const ConvGeometry& geometry, const Shape& input, DType dtype,
                      ConvPass pass) const;
  Plan& plan_for(const ConvProblem& problem, bool timed = false);
  void drop_old_plans();

  void run(Plan& plan, const Operands& operands);
  void run_batch(Plan& plan, const Operands& operands);
  void pack(const Plan& plan, const float* weight);
  Packed* find_packed(const Plan& plan, const float* weight);
  void reserve_gradients(std::span<const ConvWeights> weights);
  void* take_left(const Plan& plan, const float* grad_weight);
  void execute(Plan& plan, const std::array<void*, 4>& addresses);

  const Device device_;
  const Context& context_;
  const int compute_capability_;  // its major number
  const ConvolutionMemory memory_;
  const bool tf32_;
  const Handle handle_;
  EngineSearch search_;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::vector<Packed> packed_;  // as many
  Storage left_memory_;
  std::size_t left_capacity_ = 0;  // bytes of it that the present weights' gradients need
  std::size_t left_bytes_ = 0;     // in use
  std::vector<LeftGradient> left_;
  std::vector<Transposition> together_;  // of one launch: kept, so that a step does not allocate
};

}  // namespace lockstep::gpu
