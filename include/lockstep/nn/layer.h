#pragma once
// A Layer object is one call of a layer: it knows its input and output values and the parameters it
// shares with other calls of the same name. To add a layer: derive from Layer, give the
// NetworkBuilder a method; `export_onnx` puts it into ONNX files.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/sync/group.h"

namespace lockstep {

class OnnxGraph;   // lockstep/nn/onnx.h
struct Parameter;  // lockstep/nn/parameter_store.h

/// Images of a replica whose parameter gradients are added up on their own, because the sum over
/// the global batch takes them as one term (Backend::sums_by_image). The first step whose parts
/// have new sizes may allocate.
struct GradientPart {
  std::int64_t first = 0, count = 0;  // images of the replica's batch
  float* grads = nullptr;             // flat, as ParameterStore::grads(); null: Parameter::grad
  std::int64_t first_element = 0;     // of ParameterStore::grads() that lies at `grads`
};

/// What a forward or backward pass is for.
struct StepContext {
  bool training = true;              // false: running statistics, no dropout, no exchange
  bool update_running_stats = true;  // false: training statistics are used but not recorded
  std::reference_wrapper<Communicator> communicator = lone_rank();  // whom the device meets by
  DeviceScalar<std::uint64_t> seed = 0;                             // of this step's dropout
  std::int64_t sample_offset = 0;  // of the views' first sample in the global batch
  std::int64_t first_image = 0;    // of the replica's batch that the views begin with
  /// In the order of the images, all of them. Empty: all images together, in Parameter::grad, which
  /// a layer of one's own may always add to: the sum is then right, but for the order.
  std::span<const GradientPart> gradient_parts = {};
  /// What a layer that waits for other ranks may do in the meantime: for its first exchange in a
  /// backward pass (Exchange::show), set by the network, which does it after the layer
  /// otherwise. Null: nothing.
  std::function<void()> meanwhile = nullptr;
};

/// A tensor that flows through the network. Shapes are those planned; `Network::set_batch` sets the
/// views.
struct Value {
  std::string name;
  Shape shape;  // as planned
  Tensor data;  // view of the current batch, in the planned type
  Tensor grad;  // null when no gradient flows here
};

/// One input's gradient in a backward pass.
struct GradTarget {
  Tensor tensor;            // null: not needed
  bool accumulate = false;  // another consumer has written already: add
};

/// What the memory plan must know of a layer. The default is that of a layer whose backward pass
/// needs no value of its forward pass and whose tensors have memory of their own.
struct LayerTraits {
  // --- what `backward` reads; everything else may be overwritten after `forward` ---
  bool reads_input = false;         // input 0
  bool reads_other_inputs = false;  // all inputs but 0
  bool reads_output = false;
  /// Bytes kept from forward to backward beside the values (saved statistics, argmax indices), for
  /// the planned batch: Layer::set_saved.
  std::size_t saved_bytes = 0;
  /// Whether they are never lent to anything else: they keep their contents after the step, until
  /// the next forward pass, and peers may read them all the time.
  bool saved_persists = false;

  // --- where tensors may lie ---
  /// Whether the output lies where input 0 does, which has as many elements and which nobody else
  /// reads. Only without a backward pass.
  bool forward_in_place = false;
  /// Whether grad of input 0 may lie in the memory of the output's grad, which has as many
  /// elements.
  bool grad_in_place = false;
  /// The first input to whose gradient `backward` can add. To those before it the network adds.
  std::size_t accumulates_from = 0;
  /// Whether the layer is slow on strided tensors: its values are then kept out of concatenations.
  bool prefers_dense = false;
  /// Whether the inputs are channel ranges of the output, side by side, and may be placed inside
  /// it.
  bool concatenates = false;

  // --- what may wait ---
  /// Whether `backward` may wait for other ranks. Weight gradients of the layer after it are then
  /// deferred until it does (StepContext::meanwhile).
  bool meets_in_backward = false;
  /// Whether `backward` computes the gradients of the inputs alone, which the layers before wait
  /// for, and `backward_weights` those of the parameters, which can wait.
  bool splits_backward = false;

  // --- what need not be kept, where memory is to be spared (PlanOptions::recompute, tile) ---
  /// Whether what a pass computes for an image depends on that image alone, so that a pass over the
  /// batch may be one over a few images at a time. What such a layer saves holds until the views
  /// change. Any other layer runs once in each direction, for all images, and its values are kept.
  bool by_image = false;
  /// Whether the output may be computed again (Layer::forward_again) rather than kept: a pass over
  /// memory and no more. A layer that is not by_image then writes no output where `forward` finds
  /// none, and reads no input but the first.
  bool computes_again = false;
};

/// Positions along one side of a map, both ends included. They may lie beyond its borders.
struct Positions {
  std::int64_t first = 0, last = 0;
};

/// The least that one pass of a layer has to do, for the present batch.
struct LayerWork {
  /// Bytes read and written: every tensor once for each pass over memory that the operation cannot
  /// do without. A tensor that lies where it belongs already, such as an input that the memory plan
  /// put inside its concatenation, does not move.
  double bytes = 0;
  /// Multiplications and additions of a convolution by its definition; 0: memory is the bound.
  double flops = 0;
};

/// Bytes of the elements of `tensor`; 0 for none.
double element_bytes(const Tensor& tensor);
/// Bytes that writing the gradient moves: twice its size where it is added to.
double element_bytes(const GradTarget& target);

/// One call of a layer. Owned by its network; used by the replica's thread.
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

  /// Returns the parameters whose gradients `backward` adds to. A layer that has some runs its
  /// backward pass even if no input needs a gradient. Set-up only.
  virtual std::vector<const Parameter*> parameters() const { return {}; }

  /// Returns what the memory plan must know. Asked once, when the network is planned.
  virtual LayerTraits traits() const = 0;

  // --- what a benchmark asks ---
  /// By default a layer reads the inputs and writes the output.
  virtual LayerWork forward_work() const;
  /// By default a layer reads the output's gradient and what the traits say, and writes `grads`.
  virtual LayerWork backward_work(std::span<const GradTarget> grads) const;

  // --- set-up ---
  virtual void set_saved(void* memory) { (void)memory; }
  /// Chooses implementations for the shapes of the present views. `training`: backward may follow.
  virtual void prepare(Backend& backend, bool training) { (void)backend, (void)training; }

  /// Adds the weights that the backend is to prepack for the present views.
  virtual void list_weights(std::vector<ConvWeights>& weights) const { static_cast<void>(weights); }

  /// Reads inputs()[i]->data, writes output()->data.
  virtual void forward(Backend& backend, const StepContext& context) = 0;
  /// Writes output()->data, and saves what it saves, once more, for the images of the present views
  /// (StepContext::first_image), to the same bits.
  virtual void forward_again(Backend& backend, const StepContext& context) {
    forward(backend, context);
  }
  /// Reads output()->grad, writes or adds to `grads` [input] and to its parameters' gradients. The
  /// context is that of the forward pass.
  virtual void backward(Backend& backend, const StepContext& context,
                        std::span<const GradTarget> grads) = 0;
  /// The other half of a backward pass that is split; called before `backward` or after it. Reads
  /// inputs()[0]->data and output()->grad, and adds to the gradients of the parameters.
  virtual void backward_weights(Backend& backend, const StepContext& context) {
    static_cast<void>(backend), static_cast<void>(context);
  }

  // --- what windows of a large image ask (nn/receptive_field.h) ---
  /// Returns the positions of every input, along the height (axis 1) or the width (axis 2), from
  /// which those of the output are computed in evaluation; nullopt: all there are. By default they
  /// are the same ones.
  virtual std::optional<Positions> reads(Positions output, int axis) const {
    static_cast<void>(axis);
    return output;
  }

  // --- what an export asks ---
  /// Adds what the layer computes in evaluation to the graph (nn/onnx.h) and returns the name of
  /// the tensor that is its output. By default throws Error naming the layer and its kind.
  virtual std::string export_onnx(OnnxGraph& graph) const;

 private:
  std::string name_;
  std::vector<Value*> inputs_;
  Value* output_;
};

/// For `backward` of a layer with a parameter of its own. Adds each sample's gradient, a row of
/// `by_sample` [batch, elements of the parameter], dense and in fp32, to that of the parameter, in
/// an order that the samples alone decide (Backend::sums_by_image). So a training has the same bits
/// on any number of devices.
void add_parameter_gradient(Backend& backend, const StepContext& context, const Tensor& by_sample,
                            const Parameter& parameter);

}  // namespace lockstep
