#pragma once
// A training run of a few steps on two replicas of a GPU.

#include <filesystem>
#include <string>
#include <vector>

#include "run/run_folder.h"
#include "support/json_lines.h"
#include "support/temporary_folder.h"
#include "train/trainer.h"

namespace lockstep::test {

inline const char* const kConfig = R"(
[run]
max_iters = 6
log_every = 100
[data]
layout = "streets"
size = [16, 16]
train_images = 9
val_images = 2
[batch]
global = 4
drop_last = false
[model]
width = 4
depth = 2
[optim]
lr = 0.05
)";

inline TrainRequest request(const TemporaryFolder& folder, const std::string& run,
                            const std::vector<std::string>& overrides = {}) {
  TrainRequest result;
  result.config = load_config(folder.write("tiny.toml", kConfig), overrides);
  result.devices = "cuda:0x2";
  result.output = folder.path() / run;
  result.console = Console::kQuiet;
  return result;
}

}  // namespace lockstep::test
