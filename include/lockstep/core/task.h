#pragma once
// What is learnt of an image.

#include <cstdint>

namespace lockstep {

enum class Task : std::uint8_t {
  kSegmentation,    // a class for every pixel: labels [N, H, W], logits [N, H, W, classes]
  kClassification,  // a class for the image: labels [N], logits [N, classes]
};

constexpr const char* to_string(Task task) {
  return task == Task::kSegmentation ? "segmentation" : "classification";
}

}  // namespace lockstep
