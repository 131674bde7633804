#pragma once
// Inference with trained weights on one device: every BatchNorm by its running statistics, whatever
// it was in training; each image by its own where the model is normalize_by_image(model).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/core/device.h"
#include "lockstep/io/weights.h"
#include "lockstep/nn/model.h"

namespace lockstep {

struct PredictorOptions {
  Device device = {};           // the processor
  int threads = 0;              // host threads of a CPU device; 0: all (host_threads)
  std::string output = "out";   // of the model's
  NormLayer norm = {};          // what the model is given, as in training; its eps counts, say
  BackendOptions backend = {};  // how the device computes
};

/// The outputs of the network for a batch. Valid until the next call.
struct Prediction {
  Shape shape = {};                       // of `logits`: [N, H, W, classes] or [N, classes]
  std::span<const float> logits;          // channels last
  std::span<const std::int32_t> classes;  // [N, H, W] or [N]: the first of the largest
};

/// Used by one thread; may be moved, and a moved-from one may only go or be assigned to. Memory is
/// planned for the shapes that come: a batch of the shape before, or with fewer images, allocates
/// nothing.
class Predictor {
 public:
  /// `weights`: a state dict of the model. Throws ConfigError where the model is null.
  Predictor(Model model, const TensorMap& weights, const PredictorOptions& options = {});
  Predictor(Predictor&& other) noexcept;
  Predictor& operator=(Predictor&& other) noexcept;
  ~Predictor();

  /// `images` [shape], normalised as in training, which lie in `layout`: with channels first, those
  /// of a shape [N, H, W, C] are [N, C, H, W] in memory. Throws Error when their number is not that
  /// of the shape, and naming the layer where the shape does not fit the model; DataError when a
  /// tensor of the weights is missing, left over or of another shape. Images that fit are predicted
  /// after that, as if the others had not come.
  Prediction predict(std::span<const float> images, const Shape& shape,
                     ImageLayout layout = ImageLayout::kChannelsLast);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
