#pragma once
// What this machine and this build offer, for `lockstep doctor`.

#include <string>
#include <vector>

namespace lockstep {

struct Diagnostic {
  bool good = true;
  std::string topic;
  std::string text;
  std::string advice;  // what to do about it; empty when nothing need be done
  std::vector<std::string> details = {};
};

/// Model name with family and model number, since clouds hide the name: "AMD EPYC (family 25, model
/// 1)"; "unknown" where /proc/cpuinfo does not tell.
std::string processor_name();

/// The processor, its threads and memory, and which convolutions it gets.
std::vector<Diagnostic> probe_cpu();

/// Driver, devices, peer access and libraries; in a build without CUDA one line that says so. Does
/// not throw.
std::vector<Diagnostic> probe_cuda();

}  // namespace lockstep
