#pragma once
// A tiny configuration, and a folder with room for runs of it.

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "run/run_folder.h"
#include "support/json_lines.h"
#include "support/temporary_folder.h"
#include "train/trainer.h"

namespace lockstep::test {

inline constexpr const char* kConfig = R"(
[run]
max_iters = 10
log_every = 3
val_every = 4
checkpoint_every = 4
stall_timeout = 20
[data]
layout = "streets"
size = [32, 32]
train_images = 14
val_images = 5
[data.augment]
hflip = 0.5
[batch]
global = 6
[model]
width = 4
depth = 2
[optim]
lr = 0.05
)";

/// A folder with the configuration and room for runs.
class Runs {
 public:
  Runs() : config_(folder_.write("tiny.toml", kConfig)) {}

  TrainRequest request(const std::string& run, std::vector<std::string> overrides = {}) const {
    TrainRequest request;
    request.config = load_config(config_, overrides);
    request.devices = "cpu:4";
    request.output = folder_.path() / run;
    request.console = Console::kQuiet;
    return request;
  }
  RunFolder folder(const std::string& run) const { return {folder_.path() / run}; }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  std::filesystem::path config_;
};

/// The bytes of their scalars and of their checkpoints.
inline void check_same_run(const RunFolder& a, const RunFolder& b) {
  CHECK(read_text(a.scalars()) == read_text(b.scalars()));
  for (const char* name : {"last", "best", "iter_8", "iter_10"}) {
    CAPTURE(std::string(name));
    CHECK(std::filesystem::exists(a.checkpoint(name)));
    CHECK(read_text(a.checkpoint(name)) == read_text(b.checkpoint(name)));
    CHECK(read_text(state_path(a.checkpoint(name))) == read_text(state_path(b.checkpoint(name))));
  }
}

}  // namespace lockstep::test
