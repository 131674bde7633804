#pragma once
// A static network: layers in topological order, all memory planned for one input shape. Built by a
// NetworkBuilder, whose methods read like a PyTorch `forward`; a model (nn/model.h) is given one.
//
// A layer (and its parameters) may be called several times: use its name again.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

class BatchNormLayer;  // the library's own
struct DeclaredNetwork;
enum class Direction : std::uint8_t;  // lockstep/sync/barrier.h

/// Square windows; NetworkBuilder::conv2d takes a ConvGeometry for others.
struct Conv2dOptions {
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = false;
};

/// What a network is asked for, under a name: logits, say, and those of an auxiliary head.
struct Output {
  std::string name;
  Value* value = nullptr;
};
using Outputs = std::vector<Output>;

/// As torch.nn.ConvTranspose2d takes them, for square windows. The output is (size - 1) * stride -
/// 2 * padding + dilation * (kernel - 1) + output_padding + 1 high and wide.
struct ConvTranspose2dOptions {
  std::int64_t out_channels = 0;
  std::int64_t kernel = 2;
  std::int64_t stride = 2;
  std::int64_t padding = 0;
  std::int64_t output_padding = 0;  // below the stride
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = false;
};

struct PlanOptions {
  bool training = true;      // false: forward only; activations share memory
  bool input_grad = false;   // whether the gradient of the input is wanted (tests)
  bool share_memory = true;  // false: every tensor in memory of its own (tests, debugging)
  /// The type of all values, the network's input and output among them, and of their gradients.
  /// Parameters, their gradients and statistics are fp32 always.
  DType activations = DType::kFloat32;
  /// Names of the outputs whose gradients are given, by losses mostly, before a backward pass; no
  /// names: of all.
  std::vector<std::string> grad_outputs = {};
  /// Whether the parameter of this name stays as it is; null: none does. Nothing is computed for
  /// the gradients of those that do, where a layer can leave that out
  /// (LayerTraits::splits_backward), and the backward pass ends where nothing before is learned.
  /// What they get is of no use.
  std::function<bool(const std::string& parameter)> is_frozen = nullptr;
  /// Names of the outputs that will be read; no names: all. Layers that lead to others alone are
  /// left out, and those outputs are null.
  std::vector<std::string> outputs = {};
  /// Whether what a pass over memory computes, normalised values and activations, is computed again
  /// in the backward pass instead of being kept: less memory, more time, the same bits.
  bool recompute = false;
  /// How many images go through the layers together, while layers that meet all images, such as
  /// BatchNorm, wait for the last of them; 0: all. Fewer take less memory for what is not kept of
  /// all images, and give the same bits where the backend sums by image. Implies `recompute`; in
  /// training.
  std::int64_t tile = 0;
  /// Whether what is kept from the forward pass to the backward pass waits in memory of the host
  /// between the two (Backend::make_offload), but for small and short-lived values: less memory of
  /// the device, the same bits. In training, with `share_memory`.
  bool offload = false;
};

/// Hears of every layer's share of a pass, on the replica's thread. Where images go through a few
/// at a time, it hears of each time. What a backward pass computes again counts as that layer's
/// share of the backward pass. On a GPU `begin` and `end` only enclose the issuing of work, unless
/// the observer waits for the device itself.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// `layer`: of `Network::layers()`; `direction`: kForward or kBackward.
  virtual void begin(std::size_t layer, Direction direction) = 0;
  virtual void end(std::size_t layer, Direction direction) = 0;
};

/// One call of a layer, for who wants to see what a network consists of.
struct LayerSummary {
  std::string name;
  std::string kind;             // its class, "lockstep::Conv2dLayer"
  Shape output;                 // as planned, the batch in front
  std::int64_t parameters = 0;  // elements that no earlier call has
  std::size_t output_bytes = 0;
  std::size_t saved_bytes = 0;  // from forward to backward, beside the values
};

/// Owned by its replica and used by that replica's thread; the backend and the store outlive it.
class Network {
 public:
  ~Network();

  /// The batch of the following passes: at most the planned one, may be 0 (the replica then only
  /// takes part in exchanges). Sets the views of all values; the first time a batch comes, layers
  /// may prepare for it.
  void set_batch(std::int64_t batch);
  std::int64_t planned_batch() const;

  const Tensor& input() const;       // write the images here before `forward`, which keeps them
  const Tensor& input_grad() const;  // null unless planned; valid after `backward`
  /// The names of the outputs, in the order of the model's.
  std::vector<std::string> output_names() const;
  /// Returns the index of an output. Throws ConfigError naming those there are when there is none
  /// of that name.
  std::size_t output_index(const std::string& name) const;
  /// An output, such as logits [n, H, W, classes]; valid until `backward`. Null where the plan left
  /// it out.
  const Tensor& output(std::size_t index = 0) const;
  /// Write the loss gradient here after `forward`; null where none is wanted.
  const Tensor& output_grad(std::size_t index = 0) const;

  void forward(const StepContext& context);
  /// Hears during a backward pass that it has left `layer` (of `layers()`) behind. The gradients of
  /// the parameters that only this layer and later ones use are then issued; those of convolutions
  /// are with the next ConvolutionOperations::finish_conv2d_gradients().
  using AfterLayer = std::function<void(std::size_t layer)>;
  /// Runs the layers in reverse order. Adds to the parameters' gradients: zero them first
  /// (`zero_grad`).
  /// `after_layer` may be null; it is called for every layer.
  void backward(const StepContext& context, const AfterLayer& after_layer = nullptr);
  void zero_grad();

  /// Sets who hears of the passes from here on; null: nobody, which costs a comparison per layer. A
  /// step that is replayed from a recording calls no observer.
  void observe(LayerObserver* observer);
  /// Returns the least that a layer's pass has to do for the present batch: nothing where the pass
  /// leaves the layer out.
  LayerWork work(std::size_t layer, Direction direction) const;

  ParameterStore& parameters() const;
  Backend& backend() const;
  std::span<const std::unique_ptr<Layer>> layers() const;
  /// Returns how many pixels to one side of a pixel its output depends on in evaluation, at most. A
  /// window of a large image decides a pixel that is this far from its border as one piece would.
  /// `divisor`: of the images' sides. nullopt: the output depends on the whole image, or is of
  /// another size.
  std::optional<std::int64_t> receptive_radius(std::size_t output, std::int64_t divisor) const;
  /// Returns every call in forward order. Their tensors together take more than `planned_bytes`,
  /// which counts memory once that several of them use one after another.
  std::vector<LayerSummary> summary() const;
  /// How many bytes the plan takes: activations, gradients and what layers save.
  std::size_t planned_bytes() const;
  /// How many bytes of the host what waits there takes (PlanOptions::offload).
  std::size_t offloaded_bytes() const;

 private:
  friend class NetworkBuilder;
  friend std::span<BatchNormLayer* const> batch_norms_of(const Network& network);
  struct Impl;
  explicit Network(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// The activations of a NetworkBuilder by PyTorch's names. Of any shape.
class ActivationBuilder {
 public:
  virtual ~ActivationBuilder() = default;
  virtual Value* activation(Value* x, const Activation& function) = 0;

  Value* relu(Value* x) { return activation(x, ActivationKind::kRelu); }
  Value* relu6(Value* x) { return activation(x, ActivationKind::kRelu6); }
  /// Throws Error when the slope is negative.
  Value* leaky_relu(Value* x, float negative_slope = 0.01F) {
    return activation(x, {ActivationKind::kLeakyRelu, negative_slope});
  }
  Value* sigmoid(Value* x) { return activation(x, ActivationKind::kSigmoid); }
  Value* hardsigmoid(Value* x) { return activation(x, ActivationKind::kHardsigmoid); }
  Value* tanh(Value* x) { return activation(x, ActivationKind::kTanh); }
  Value* silu(Value* x) { return activation(x, ActivationKind::kSilu); }
  Value* hardswish(Value* x) { return activation(x, ActivationKind::kHardswish); }
  /// By the normal distribution, torch.nn.GELU().
  Value* gelu(Value* x) { return activation(x, ActivationKind::kGelu); }
  /// torch.nn.GELU(approximate="tanh").
  Value* gelu_tanh(Value* x) { return activation(x, ActivationKind::kGeluTanh); }
};

/// What layers, one's own too, are declared with: values, parameters, and their order. Part of a
/// NetworkBuilder.
class LayerBuilder {
 public:
  LayerBuilder(const LayerBuilder&) = delete;
  LayerBuilder& operator=(const LayerBuilder&) = delete;

  /// The backend of the replica that the network is for.
  Backend& backend() const;

  /// A new value that a layer of one's own writes. `shape`: with the batch of its input.
  Value* value(const std::string& name, const Shape& shape);
  /// A parameter, declared at its first mention (ParameterStore::parameter, which says what it is
  /// initially).
  Parameter& parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                       std::int64_t fan_in = 0);
  Parameter& parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                       const Initial& initial);
  /// Appends a call of a layer and returns its output. A layer may have no inputs: a learnable
  /// constant, say. Throws Error naming the layer where a value is null, is of another builder, is
  /// read before a layer writes it, or is written twice.
  Value* append(std::unique_ptr<Layer> layer);

 protected:
  LayerBuilder(Backend& backend, ParameterStore& store, const NormLayer& norm);
  ~LayerBuilder();

  void check_open() const;
  /// The name of the next layer, where it has no parameters.
  std::string numbered(const char* kind) const;

  std::unique_ptr<DeclaredNetwork> declared_;  // null once the network is built

 private:
  void check_input(const Layer& layer, const Value* x) const;
};

/// Declares layers in execution order. Every method returns the layer's output; names of layers
/// without parameters are chosen by the builder. Throws Error when shapes do not fit or an input is
/// null, naming the layer. Used by one thread, during the call of a model.
class NetworkBuilder final : public LayerBuilder, public ActivationBuilder {
 public:
  /// `store` may hold parameters of an earlier network of the same model: they are then shared.
  /// `norm`: what `batch_norm` without a norm layer declares.
  NetworkBuilder(Backend& backend, ParameterStore& store, const NormLayer& norm = {});
  ~NetworkBuilder() override = default;

  Value* input(const Shape& shape);
  Value* conv2d(Value* x, const std::string& name, const Conv2dOptions& options);
  Value* conv2d(Value* x, const std::string& name, const ConvGeometry& geometry, bool bias);
  /// torch.nn.ConvTranspose2d. `name`.weight is [in, out / groups, kernel, kernel].
  Value* conv_transpose2d(Value* x, const std::string& name, const ConvTranspose2dOptions& options);
  /// torch.nn.Linear over the channels of any shape: [..., in] to [..., out_features].
  /// `name`.weight is [out, in].
  Value* linear(Value* x, const std::string& name, std::int64_t out_features, bool bias = true);
  Value* batch_norm(Value* x, const std::string& name, const NormLayer& norm,
                    const NormCall& call = {});
  /// The same by the network's norm layer.
  Value* batch_norm(Value* x, const std::string& name, const NormCall& call = {});
  Value* batch_norm_relu(Value* x, const std::string& name);
  Value* batch_norm_add_relu(Value* x, Value* residual, const std::string& name);
  Value* activation(Value* x, const Activation& function) override;
  /// torch.nn.PReLU: `name`.weight is [C], or [1] for one slope of all channels.
  Value* prelu(Value* x, const std::string& name, bool per_channel = true, float initial = 0.25F);
  /// torch.nn.Softmax over the channels of every position.
  Value* softmax(Value* x);
  Value* max_pool2d(Value* x, const PoolGeometry& geometry);
  Value* avg_pool2d(Value* x, const PoolGeometry& geometry);
  /// torch.nn.AdaptiveAvgPool2d: the average of each of height x width bins of an image, which
  /// share positions where its extents are no multiples. To 1x1: global average pooling.
  Value* adaptive_avg_pool2d(Value* x, std::int64_t height, std::int64_t width);
  Value* upsample_bilinear(Value* x, std::int64_t height, std::int64_t width, bool align_corners);
  /// To the height and width of `like`, whatever they are in an exported network (nn/onnx.h).
  Value* upsample_bilinear(Value* x, const Value* like, bool align_corners);
  Value* concat(const std::vector<Value*>& parts);  // along channels
  /// x[..., begin : begin + count].
  Value* slice_channels(Value* x, std::int64_t begin, std::int64_t count);
  // a + b, a - b and a * b. b may have one channel, or one row for each sample ([N, 1, 1, C], as
  // squeeze-and-excite's gate), or both: every element of a then meets the one that is there. So
  // may a in a sum or a product.
  Value* add(Value* a, Value* b);
  Value* sub(Value* a, Value* b);
  Value* mul(Value* a, Value* b);
  Value* dropout(Value* x, float p);
  /// Gives every sample the sum over all samples of the global batch, in double and rounded once:
  /// on CPU devices in the samples' order, on GPUs first of each device's own. So any number of
  /// devices computes what one does; with a sample on each it is the sum over the devices
  /// (PyTorch-Encoding's AllReduce). The gradient is the same sum, of the gradients. In evaluation,
  /// where devices do not meet, the sum is over the batch at hand; with micro-batches over each of
  /// them.
  Value* all_reduce(Value* x);
  /// The same elements in the same order, channels last, in another shape: [N, H, W, C] to [N,
  /// H*W*C], say. `shape` has as many elements per sample as x; its batch is that of x. To get the
  /// order of torch.flatten from an image, whose channels come first there, pool it to 1x1 before.
  Value* reshape(Value* x, const Shape& shape);

  /// While it lives, every norm layer is changed before it is declared, by what it is and the shape
  /// of its input.
  class NormConversion {
   public:
    using Convert = std::function<void(NormLayer& norm, const Shape& input)>;
    NormConversion(NetworkBuilder& net, Convert convert);
    NormConversion(const NormConversion&) = delete;
    NormConversion& operator=(const NormConversion&) = delete;
    ~NormConversion();

   private:
    NetworkBuilder& net_;
  };

  /// Returns the layers that lead to some of these values, in execution order, for those who
  /// examine a network and do not run it. They live as long as the builder.
  std::vector<const Layer*> layers_to(const std::vector<const Value*>& wanted) const;

  /// Allocates the store if it is not yet, plans memory and prepares every layer. Called once.
  /// Throws ConfigError where there are no outputs, or one is null, is the input, or is written by
  /// no layer.
  std::unique_ptr<Network> build(const Outputs& outputs, const PlanOptions& options);
  /// The same for a network with one output, "out".
  std::unique_ptr<Network> build(Value* output, const PlanOptions& options);

 private:
  Value* binary(BinaryKind kind, Value* a, Value* b);
};

}  // namespace lockstep
