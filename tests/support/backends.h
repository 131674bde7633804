#pragma once
// Every backend that a test executable offers, so that one body of tests serves all of them.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep::test {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::vector<DType> types = {DType::kFloat32};  // of activations that it computes on
};

/// What CPUs compute on.
inline const std::vector<DType> kCpuTypes = {DType::kFloat32, DType::kBFloat16};
/// What GPUs compute on.
inline const std::vector<DType> kGpuTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

/// In test_backend: the CPU with one thread and with three (an uneven split), and the first GPU if
/// one answers. In test_kernels: the emulated GPU.
std::vector<NamedBackend> available_backends();

/// The same, but for GPUs that keep sums image by image.
std::vector<NamedBackend> backends_by_image();

}  // namespace lockstep::test
