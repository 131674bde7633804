#pragma once
// A static network: layers in topological order, all memory planned for one input shape. Built by a
// NetworkBuilder that reads like a PyTorch `forward`:
//
//   NetworkBuilder net(backend, store, bn_options);
//   Value* x = net.input({8, 176, 240, 3});
//   x = net.batch_norm_relu(net.conv2d(x, "stem.conv", {.out_channels = 16, .kernel = 3, .padding =
//   1}), "stem.bn"); std::unique_ptr<Network> network = net.build(x, {.training = true});
//
// A layer (and its parameters) may be called several times: use its name again.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/batch_norm_options.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

class BatchNormLayer;

/// Square windows; use `geometry` fields of the layer for others.
struct Conv2dOptions {
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = false;
};

struct PlanOptions {
  bool training = true;      // false: forward only; activations share memory
  bool input_grad = false;   // whether the gradient of the input is wanted (tests)
  bool share_memory = true;  // false: every tensor in memory of its own (tests, debugging)
  /// Of all values, the network's input and output among them, and of their gradients. Parameters,
  /// their gradients and statistics are fp32 always.
  DType activations = DType::kFloat32;
};

/// Hears of every layer's share of a pass, on the replica's thread. On a GPU `begin` and `end` only
/// enclose the issuing of work, unless the observer waits for the device itself.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// `layer`: of `Network::layers()`; `direction`: kForward or kBackward.
  virtual void begin(std::size_t layer, Direction direction) = 0;
  virtual void end(std::size_t layer, Direction direction) = 0;
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

  const Tensor& input() const;        // write the images here before `forward`, which keeps them
  const Tensor& input_grad() const;   // null unless planned; valid after `backward`
  const Tensor& output() const;       // e.g. logits [n, H, W, classes]; valid until `backward`
  const Tensor& output_grad() const;  // write the loss gradient here after `forward`

  void forward(const StepContext& context);
  /// Hears during a backward pass that it has left `layer` (of `layers()`) behind: the gradients of
  /// the parameters that only this layer and later ones use are issued.
  using AfterLayer = std::function<void(std::size_t layer)>;
  /// In reverse order. Adds to the parameters' gradients: zero them first (`zero_grad`).
  /// `after_layer` may be null; it is called for every layer.
  void backward(const StepContext& context, const AfterLayer& after_layer = nullptr);
  void zero_grad();

  /// Of the passes from here on; null: nobody, which costs a comparison per layer. A step that is
  /// replayed from a recording calls no observer.
  void observe(LayerObserver* observer);
  /// The least that a layer's pass has to do for the present batch; nothing where the pass leaves
  /// the layer out.
  LayerWork work(std::size_t layer, Direction direction) const;

  ParameterStore& parameters() const;
  Backend& backend() const;
  std::span<const std::unique_ptr<Layer>> layers() const;
  /// Every BatchNorm call in forward order.
  std::span<BatchNormLayer* const> batch_norms() const;
  /// Bytes of the plan: activations, gradients and what layers save.
  std::size_t planned_bytes() const;

 private:
  friend class NetworkBuilder;
  struct Impl;
  explicit Network(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Declares layers in execution order. Every method returns the layer's output; names of layers
/// without parameters are chosen by the builder. Throws Error when shapes do not fit, naming the
/// layer.
class NetworkBuilder {
 public:
  /// `store` may hold parameters of an earlier network of the same configuration: they are then
  /// shared.
  NetworkBuilder(Backend& backend, ParameterStore& store, const BatchNormOptions& batch_norm);
  ~NetworkBuilder();

  Value* input(const Shape& shape);
  Value* conv2d(Value* x, const std::string& name, const Conv2dOptions& options);
  Value* conv2d(Value* x, const std::string& name, const ConvGeometry& geometry, bool bias);
  Value* batch_norm(Value* x, const std::string& name);
  Value* batch_norm_relu(Value* x, const std::string& name);
  Value* batch_norm_add_relu(Value* x, Value* residual, const std::string& name);
  /// As above with every choice: `options` instead of the network's, frozen: running statistics
  /// also in training.
  struct BatchNormCall {
    bool relu = false;
    Value* residual = nullptr;
    bool frozen = false;
    std::optional<BatchNormOptions> options = {};
  };
  Value* batch_norm(Value* x, const std::string& name, const BatchNormCall& call);
  Value* relu(Value* x);
  Value* max_pool2d(Value* x, const PoolGeometry& geometry);
  Value* avg_pool2d(Value* x, const PoolGeometry& geometry);
  Value* global_avg_pool(Value* x);  // [N, 1, 1, C]
  Value* upsample_bilinear(Value* x, std::int64_t height, std::int64_t width, bool align_corners);
  Value* concat(const std::vector<Value*>& parts);  // along channels
  Value* add(Value* a, Value* b);
  Value* dropout(Value* x, float p);

  /// Allocates the store if it is not yet, plans memory and prepares every layer. Once.
  std::unique_ptr<Network> build(Value* output, const PlanOptions& options);

 private:
  Value* new_value(const std::string& name, const Shape& shape);
  Value* append(std::unique_ptr<Layer> layer);
  std::string numbered(const char* kind) const;

  std::unique_ptr<Network::Impl> impl_;
};

}  // namespace lockstep
