#pragma once
// A model is a function that declares a network for an input. It is called once per replica and
// plan, on the replica's thread, and must declare the same layers every time: its only state are
// its arguments.
//
//   Outputs tiny(NetworkBuilder& net, Value* x, const NormLayer& norm) {
//     x = net.conv2d(x, "stem.conv", {.out_channels = 16, .kernel = 3, .padding = 1});
//     x = norm(net, x, "stem.bn", {.relu = true});
//     return {{"out", net.conv2d(x, "head", {.out_channels = 3, .bias = true})}};
//   }

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/options.h"
#include "lockstep/io/image.h"
#include "lockstep/nn/network.h"

namespace lockstep {

using Model = std::function<Outputs(NetworkBuilder& net, Value* input, const NormLayer& norm)>;

/// Builds the network of a model for inputs of this shape (the batch in front is the largest that
/// will come). `store` may hold the parameters of an earlier network of the same model: they are
/// shared then. Throws Error or ConfigError when shapes do not fit, naming the layer.
std::unique_ptr<Network> build_network(const Model& model, const NormLayer& norm,
                                       const Shape& input, const PlanOptions& plan,
                                       Backend& backend, ParameterStore& store);

/// Returns the same model with every BatchNorm synchronized over all devices, whether the norm
/// layer came from the caller or is the model's own; eps, momentum, affine and tracking stay,
/// frozen layers stay frozen, and what is no BatchNorm (GroupNorm) stays what it is
/// (torch.nn.SyncBatchNorm.convert_sync_batchnorm). With process groups: over the ranks in one set.
/// Names are not touched: the same weights load into both.
Model convert_sync_batchnorm(Model model, const RankPartition& process_groups = {});
/// The way back: synchronized layers become ones that every device computes by itself.
Model revert_sync_batchnorm(Model model);
/// The same model with BatchNorm that keeps no running statistics: an evaluation of it normalises
/// by the batch that it is given. A layer that sees one value per channel keeps its running
/// statistics, frozen layers stay frozen, and what is no BatchNorm stays what it is. Its parameters
/// are the model's: both may share a store.
Model normalize_by_batch(Model model);
/// The same model with BatchNorm that normalises every image by its own mean and variance, as
/// InstanceNorm does: what a training with one image per device does, and prediction-time BatchNorm
/// (Nado et al. 2020) of one image. A layer that sees one value per image and channel keeps its
/// running statistics, since a value's own mean leaves nothing of it. Frozen layers stay frozen,
/// and what is no BatchNorm stays what it is. Names are not touched: the model's weights load into
/// it, running statistics too, and both may share a store.
Model normalize_by_image(Model model);

/// What a configuration may say about a model; each takes what it knows.
struct ModelOptions {
  std::string arch = "unet";
  std::int64_t num_classes = 0;
  bool one_logit = false;   // of two classes: one channel and a sigmoid, not two and a softmax
  std::int64_t width = 16;  // U-Net: channels of the first stage
  std::int64_t depth = 4;   // U-Net: stages
  std::int64_t resnet_width = 64;  // ResNet: channels of the stem and of layer1
  bool small_images = false;       // ResNet: a stem that does not shrink the image
  // Segmentation networks on a ResNet:
  bool aux_head = false;               // a second head, with a loss of its own
  std::optional<double> dropout = {};  // none: the architecture's
  int output_stride = 8;               // the image's size over that of the features
  bool frozen_bn = false;              // the backbone's BatchNorm keeps its running statistics
  std::string backbone_weights = {};   // a file that a training begins with (io/weights.h)
  std::string weights_prefix = {};     // of the names in a file that has several networks

  template <typename Visitor>
  void visit_options(Visitor& v) {
    const ModelOptions defaults;
    v("arch", arch,
      "unet, fcn_resnet50, deeplabv3_resnet50, pspnet_resnet50 (or 101); classification: resnet18, "
      "34, 50, 101, resnext50_32x4d");
    v("one_logit", one_logit,
      "two classes: one channel at the end and a sigmoid, in place of two and a softmax",
      {.written = one_logit});
    v("width", width, "unet: channels of the first stage", {.in = {.lo = 1, .hi = 4096}});
    v("depth", depth, "unet: stages", {.in = {.lo = 1, .hi = 10}});
    v("resnet_width", resnet_width, "ResNet: channels of the stem and of layer1",
      {.in = {.lo = 1, .hi = 4096}, .written = resnet_width != defaults.resnet_width});
    v("small_images", small_images, "ResNet: a stem of one 3x3 convolution, without pooling",
      {.written = small_images});
    v("aux_head", aux_head, "a second head, whose loss counts loss.aux_weight times",
      {.written = aux_head});
    v("dropout", dropout, "of the heads; default: the published one", {.in = limits::kBelowOne});
    v("output_stride", output_stride, "8, 16 or 32: size of the image over the features'",
      {.among = {8, 16, 32}, .written = output_stride != defaults.output_stride});
    v("frozen_bn", frozen_bn, "the backbone's BatchNorm keeps its running statistics",
      {.written = frozen_bn});
    v("backbone_weights", backbone_weights,
      "a file to begin with, as far as its names fit: .pth or safetensors");
    v("weights_prefix", weights_prefix,
      "files that hold several networks: the one whose names begin with \"teacher.\", for example",
      {.written = !weights_prefix.empty()});
  }
};

/// A model that is ready to be declared.
struct Architecture {
  Model model = nullptr;
  /// Heights and widths of images must be multiples of it.
  std::int64_t size_divisor = 1;
  std::string description = {};  // for logs: "U-Net of width 16 and depth 4"
  /// Beginnings of the names of its last layers' parameters, which may learn at a rate of their
  /// own.
  std::vector<std::string> heads = {};
  Task task = Task::kSegmentation;
  /// Fields of ModelOptions, by name, that mean nothing to it: who sets one in a configuration is
  /// told so.
  std::vector<std::string> ignored_options = {};
};

/// An entry of a table of models: what a configuration calls `name` in model.arch.
struct ModelEntry {
  std::string name;
  std::function<Architecture(const ModelOptions&)> make;
};
using ModelTable = std::vector<ModelEntry>;

/// The models that come with the library.
const ModelTable& builtin_models();

/// Returns the architecture of `options.arch`. Throws ConfigError naming what there is when there
/// is none of that name.
Architecture find_architecture(const ModelTable& models, const ModelOptions& options);

/// Gives every parameter its initial values (Parameter::initial): by default Kaiming-normal weights
/// from counter-based random numbers keyed by seed and parameter name; biases 0, gamma 1, beta 0.
/// Touches device memory through the backend; the result depends on nothing but (seed, names,
/// shapes).
void initialize_parameters(ParameterStore& store, Backend& backend, std::uint64_t seed);

}  // namespace lockstep
