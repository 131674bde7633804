#pragma once
// Training steps of PyTorch's as make_golden.py wrote them: where they start and what they are
// given.

#include "lockstep/data/batch.h"
#include "oracle/golden.h"

namespace lockstep::oracle {

/// Step `step` of the case that the metadata `about` describes; ignored labels are 255.
inline Batch batch_of(const Golden& golden, const Json& about, std::int64_t step) {
  Batch batch;
  const std::int64_t count = about["batch"];
  batch.size = {about["size"][0], about["size"][1]};
  const std::int64_t pixels = count * batch.size.height * batch.size.width;
  const std::vector<float> images = golden.floats("images");
  const std::vector<std::uint8_t> labels = golden.bytes("labels");
  batch.images.assign(images.begin() + step * pixels * 3, images.begin() + (step + 1) * pixels * 3);
  batch.labels.assign(labels.begin() + step * pixels, labels.begin() + (step + 1) * pixels);
  batch.class_pixels.resize(about["classes"]);
  for (const Label label : batch.labels) {
    if (label != 255) ++batch.class_pixels[label];
  }
  for (std::int64_t n = 0; n < count; ++n) batch.samples.push_back(step * count + n);
  return batch;
}

inline TensorMap initial_weights(const Golden& golden) {
  const std::string prefix = "initial.";
  TensorMap weights;
  for (const auto& [name, tensor] : golden.tensors()) {
    if (name.starts_with(prefix)) weights[name.substr(prefix.size())] = tensor;
  }
  return weights;
}

}  // namespace lockstep::oracle
