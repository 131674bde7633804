#pragma once
// What this machine and this build offer, for `lockstep doctor`.

#include <string>
#include <vector>

namespace lockstep {

struct Finding {
  bool good = true;
  std::string topic;
  std::string text;
  std::string advice;  // what to do about it; empty when nothing need be done
  std::vector<std::string> details = {};
};

/// The processor, its threads and memory, and which convolutions it gets.
std::vector<Finding> examine_cpu();

/// Driver, devices, peer access and libraries; in a build without CUDA one line that says so. Does
/// not throw.
std::vector<Finding> examine_cuda();

}  // namespace lockstep
