#pragma once
// A training of moments, for tests that look at a program around it.

#include <string>

namespace lockstep::test {

/// Eight street scenes of 32x32 in batches of 4, a U-Net of width 4. `run`: lines of [run].
inline std::string tiny_config(const std::string& run) {
  return "[run]\n" + run + R"([data]
layout = "streets"
size = [32, 32]
train_images = 8
val_images = 2
[batch]
global = 4
[model]
width = 4
depth = 2
)";
}

}  // namespace lockstep::test
