#pragma once
// A Layer object is one call of a layer: it knows its input and output values and the parameters it shares
// with other calls of the same name. To add a layer: derive from Layer, give the NetworkBuilder a method.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/nn/parameter_store.h"
#include "lockstep/sync/communicator.h"

namespace lockstep {

/// What a forward or backward pass is for.
struct StepContext {
  bool training = true;                  // false: running statistics, no dropout, no exchange
  bool update_running_stats = true;      // false: training statistics are used but not recorded
  Communicator* communicator = nullptr;  // null: one device on its own
  std::uint64_t seed = 0;                // of this step's dropout
  std::int64_t sample_offset = 0;        // of this replica's first sample in the global batch
};

/// A tensor that flows through the network. Shapes are those planned; `Network::set_batch` sets the views.
struct Value {
  std::string name;
  Shape shape;              // as planned
  Tensor data;              // view of the current batch
  Tensor grad;              // null when no gradient flows here
  bool needs_grad = false;
};

/// One input's gradient in a backward pass.
struct GradTarget {
  Tensor tensor;            // null: not needed
  bool accumulate = false;  // another consumer has written already: add
};

/// What a backward pass reads, for memory planning: everything else may be overwritten after forward.
struct BackwardReads {
  bool inputs = false;
  bool output = false;
};

class Layer {
 public:
  Layer(std::string name, std::vector<Value*> inputs, Value* output)
      : name_(std::move(name)), inputs_(std::move(inputs)), output_(output) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string& name() const { return name_; }
  std::span<Value* const> inputs() const { return inputs_; }
  Value* output() const { return output_; }

  /// Chooses implementations for the planned shapes. `training`: backward will follow.
  virtual void prepare(Backend& backend, bool training) { (void)backend, (void)training; }
  /// Bytes kept from forward to backward beside the values (saved statistics, winners).
  virtual std::size_t saved_bytes() const { return 0; }
  virtual void set_saved(void* memory) { (void)memory; }
  virtual BackwardReads backward_reads() const = 0;
  /// Whether grad of input 0 may lie in the memory of the output's grad (the layer can work in place).
  virtual bool grad_in_place() const { return false; }

  /// Reads inputs()[i]->data, writes output()->data.
  virtual void forward(Backend& backend, const StepContext& context) = 0;
  /// Reads output()->grad, writes or adds to `grads` [input] and to its parameters' gradients.
  virtual void backward(Backend& backend, const StepContext& context,
                        std::span<const GradTarget> grads) = 0;

 private:
  std::string name_;
  std::vector<Value*> inputs_;
  Value* output_;
};

}  // namespace lockstep
