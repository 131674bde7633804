#pragma once
// Trained networks as ONNX files (https://onnx.ai), for inference by other programs: opset 17, the
// network as it is in evaluation. Images are [N, 3, H, W] there, as in PyTorch.
//
// A layer exports itself: Layer::export_onnx adds nodes to an OnnxGraph. For a leaky ReLU:
//
//   std::string export_onnx(OnnxGraph& graph) const override {
//     return graph.add("LeakyRelu", {graph.tensor(inputs()[0])}, {{"alpha", 0.1F}});
//   }

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/io/onnx.h"
#include "lockstep/io/weights.h"
#include "lockstep/nn/model.h"

namespace lockstep {

/// What a layer exports itself to. Tensors are known by their names, which the graph chooses. They
/// are channels-first: a value [N, H, W, C] is a tensor [N, C, H, W], of any number of spatial
/// extents. Sizes other than the channels' must not come from a value's planned shape but where
/// `fixed_size`: an image of another size may come.
class OnnxGraph {
 public:
  struct Impl;
  explicit OnnxGraph(Impl& impl) : impl_(impl) {}

  /// The tensor of an input of the layer. Throws Error when the value does not lead to the output
  /// that is exported.
  const std::string& tensor(const Value* value) const;
  /// Adds a node with one output and returns the output's name. Inputs that are left out are "".
  std::string add(const std::string& op_type, const std::vector<std::string>& inputs,
                  const std::vector<OnnxAttribute>& attributes = {});

  // Constants; an equal one under that name is taken again. `name`: without that of the layer.
  std::string floats(const std::string& name, const OnnxInts& extents,
                     const std::vector<float>& values);
  std::string ints(const std::string& name, const OnnxInts& extents, const OnnxInts& values);
  /// A parameter of the layer under its own name, in PyTorch's order and in its own shape or in
  /// another one of as many elements.
  std::string parameter(const Parameter& parameter, const OnnxInts& extents = {});
  /// Elements of the layer's device memory, such as running statistics.
  std::vector<float> read(const float* device_memory, std::int64_t elements) const;

  /// Whether images always have the planned height and width.
  bool fixed_size() const;

 private:
  Impl& impl_;
};

struct OnnxOptions {
  /// Whether a BatchNorm that alone reads a convolution's output becomes part of the convolution.
  bool fold_batch_norm = true;
  std::int64_t channels = 3;      // of images
  std::int64_t size_divisor = 1;  // Architecture::size_divisor
  /// The size of the images that the file will be used for; 0: any size.
  std::int64_t height = 0, width = 0;
  /// Which of the model's outputs are written; others, such as an auxiliary head's, are left out.
  std::vector<std::string> outputs = {"out"};
  Metadata metadata = {};  // goes to metadata_props
};

/// Writes the model with these weights, a state dict of it, as it is in evaluation. Input "image"
/// [N, channels, H, W], normalised as in training; outputs by their names, [N, classes, H, W] of a
/// segmentation network, [N, classes] of a classification network; N is never fixed. Throws Error
/// naming the layer and its kind for one that does not export itself or depends on the image's
/// size where that is not fixed, DataError when the weights are not those of the model, Error when
/// writing fails; the file is then untouched.
void save_onnx(const std::filesystem::path& path, const Model& model, const NormLayer& norm,
               const TensorMap& weights, const OnnxOptions& options = {});

}  // namespace lockstep
