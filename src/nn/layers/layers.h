#pragma once
// The layers that are a few lines each. (Convolution: conv2d_layer.h; BatchNorm: nn/norms.)

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/layer.h"
#include "lockstep/sync/barrier.h"
#include "lockstep/sync/exchange.h"

namespace lockstep {

// --- one element at a time ---

class ActivationLayer : public Layer {
 public:
  ActivationLayer(std::string name, Value* input, Value* output, const Activation& activation);

  LayerTraits traits() const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  const Tensor& saved() const;  // what the gradient is computed from

  Activation activation_;
};

/// y = f(a, b), where one element of b may be met by many of a
/// (ActivationOperations::binary_forward).
class BinaryLayer : public Layer {
 public:
  BinaryLayer(std::string name, Value* a, Value* b, Value* output, BinaryKind kind);

  LayerTraits traits() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  bool passes_on(std::size_t input) const;  // the gradient of the output, unchanged

  BinaryKind kind_;
};

/// y = x, times a slope where x is not positive. Keeps what every sample adds to the slopes'
/// gradient.
class PReluLayer : public Layer {
 public:
  /// `slope`: [C], or [1] for all channels.
  PReluLayer(std::string name, Value* input, Value* output, Parameter* slope);

  std::vector<const Parameter*> parameters() const override { return {slope_}; }
  LayerTraits traits() const override;
  void set_saved(void* memory) override { by_sample_ = memory; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  Tensor slope() const;

  Parameter* slope_;
  void* by_sample_ = nullptr;
};

/// Over the channels of every position.
class SoftmaxLayer : public Layer {
 public:
  SoftmaxLayer(std::string name, Value* input, Value* output);

  LayerTraits traits() const override {
    return {.reads_output = true, .grad_in_place = true, .by_image = true, .computes_again = true};
  }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

/// Keeps nothing: the backward pass draws the same numbers again.
class DropoutLayer : public Layer {
 public:
  /// `call` tells the dropout layers of one network apart.
  DropoutLayer(std::string name, Value* input, Value* output, float p, std::uint64_t call);

  LayerTraits traits() const override {
    return {.grad_in_place = true, .by_image = true, .computes_again = true};
  }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  void apply(Backend& backend, const StepContext& context, const Tensor& from, const Tensor& to,
             bool accumulate) const;

  float p_;
  std::uint64_t call_;
};

/// The same elements in another shape.
class ReshapeLayer : public Layer {
 public:
  ReshapeLayer(std::string name, Value* input, Value* output);

  LayerTraits traits() const override {
    return {.prefers_dense = true, .by_image = true, .computes_again = true};
  }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::optional<Positions> reads(Positions, int) const override { return std::nullopt; }
  std::string export_onnx(OnnxGraph& graph) const override;
};

// --- pooling and interpolation ---

/// Keeps one byte per output element, the position of the maximum in its window.
class MaxPoolLayer : public Layer {
 public:
  MaxPoolLayer(std::string name, Value* input, Value* output, const PoolGeometry& geometry);

  LayerTraits traits() const override;
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void set_saved(void* memory) override { argmax_ = memory; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::optional<Positions> reads(Positions output, int axis) const override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  Tensor argmax() const;

  PoolGeometry geometry_;
  void* argmax_ = nullptr;
};

class AvgPoolLayer : public Layer {
 public:
  AvgPoolLayer(std::string name, Value* input, Value* output, const PoolGeometry& geometry);

  LayerTraits traits() const override { return {.by_image = true, .computes_again = true}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::optional<Positions> reads(Positions output, int axis) const override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  PoolGeometry geometry_;
};

class AdaptiveAvgPoolLayer : public Layer {
 public:
  AdaptiveAvgPoolLayer(std::string name, Value* input, Value* output);

  LayerTraits traits() const override { return {.by_image = true, .computes_again = true}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::optional<Positions> reads(Positions, int) const override { return std::nullopt; }
  std::string export_onnx(OnnxGraph& graph) const override;
};

/// Bilinear interpolation to the height and width of the output.
class UpsampleLayer : public Layer {
 public:
  /// `like`: whose height and width the output always has; null: those of the output are fixed.
  UpsampleLayer(std::string name, Value* input, Value* output, bool align_corners,
                const Value* like);

  LayerTraits traits() const override { return {.by_image = true, .computes_again = true}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::optional<Positions> reads(Positions output, int axis) const override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  bool align_corners_;
  const Value* like_;
};

// --- concatenation and slicing ---

/// Along channels. An input that the memory plan has placed inside the output is not copied, and
/// neither is its gradient.
class ConcatLayer : public Layer {
 public:
  ConcatLayer(std::string name, std::vector<Value*> inputs, Value* output);

  LayerTraits traits() const override {
    return {.concatenates = true, .by_image = true, .computes_again = true};
  }
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

/// Channels from `begin` on, as many as the output has.
class ChannelSliceLayer : public Layer {
 public:
  ChannelSliceLayer(std::string name, Value* input, Value* output, std::int64_t begin);

  LayerTraits traits() const override { return {.by_image = true, .computes_again = true}; }
  LayerWork forward_work() const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  Tensor range_of(const Tensor& tensor) const;

  std::int64_t begin_;
};

// --- sums over all devices ---

/// y[n] = sum over all samples m of the global batch of x[m]; the gradient is the same sum of y's.
class AllReduceLayer : public Layer {
 public:
  /// `call_index`: of the layer among all of the network.
  AllReduceLayer(std::string name, Value* input, Value* output, int call_index);

  LayerTraits traits() const override;
  void prepare(Backend& backend, bool training) override;
  void set_saved(void* memory) override {
    exchange_.set_slots(static_cast<float*>(memory), slot_floats());
  }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;

 private:
  std::int64_t elements() const;  // of a sample
  std::int64_t slot_floats() const;
  StatSlot sum_samples(Backend& backend, const Tensor& from, float* slot) const;
  void reduce(Backend& backend, const StepContext& context, Direction direction, const Tensor& from,
              const GradTarget& to);

  Exchange exchange_;
  bool by_image_ = false;
};

}  // namespace lockstep
