#pragma once
// Layers that look at one element at a time.

#include <cstdint>

#include "lockstep/nn/layer.h"

namespace lockstep {

class ReluLayer : public Layer {
 public:
  ReluLayer(std::string name, Value* input, Value* output);

  LayerTraits traits() const override { return {.reads_output = true, .grad_in_place = true}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

class AddLayer : public Layer {
 public:
  AddLayer(std::string name, Value* a, Value* b, Value* output);

  LayerTraits traits() const override { return {.grad_in_place = true}; }
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
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

  LayerTraits traits() const override { return {.grad_in_place = true}; }
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

  LayerTraits traits() const override { return {.prefers_dense = true}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

}  // namespace lockstep
