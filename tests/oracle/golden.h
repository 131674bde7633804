#pragma once
// Reads what make_golden.py wrote and judges results by it: ours must be as close to PyTorch's
// float64 result as PyTorch's own float32 result is, within kFactor. A test calls `load_golden` and
// returns when it is null.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "lockstep/io/weights.h"

namespace lockstep::oracle {

using Json = nlohmann::json;

constexpr double kFactor = 3;
/// Roundings of the largest value that sums of a few hundred float32 values may differ by, in
/// whatever order they are taken (PyTorch sums some of them in double, and is then closer than
/// float32 can be asked to be).
constexpr double kFloorUlps = 16;

class Golden {
 public:
  explicit Golden(SafetensorsFile file) : file_(std::move(file)) {}

  const TensorMap& tensors() const { return file_.tensors; }
  bool has(const std::string& name) const { return file_.tensors.contains(name); }
  nlohmann::json metadata(const std::string& name) const {
    return nlohmann::json::parse(file_.metadata.at(name));
  }
  /// Names of the cases: every metadata entry but PyTorch's version.
  std::vector<std::string> cases() const {
    std::vector<std::string> names;
    for (const auto& [name, text] : file_.metadata) {
      if (name != "torch") names.push_back(name);
    }
    return names;
  }

  std::vector<float> floats(const std::string& name) const { return values<float>(name, "F32"); }
  std::vector<double> doubles(const std::string& name) const { return values<double>(name, "F64"); }
  std::vector<std::uint8_t> bytes(const std::string& name) const {
    return values<std::uint8_t>(name, "U8");
  }
  Shape shape(const std::string& name) const {
    const std::vector<std::int64_t>& extents = tensor(name).shape;
    LOCKSTEP_CHECK(extents.size() == 4, name, " is not an activation");
    return {extents[0], extents[1], extents[2], extents[3]};
  }

 private:
  const HostTensor& tensor(const std::string& name) const {
    LOCKSTEP_CHECK(has(name), "no golden tensor ", name);
    return file_.tensors.at(name);
  }
  template <typename T>
  std::vector<T> values(const std::string& name, const char* dtype) const {
    const HostTensor& source = tensor(name);
    LOCKSTEP_CHECK(source.dtype == dtype, name, " is ", source.dtype);
    std::vector<T> result(source.data.size() / sizeof(T));
    std::memcpy(result.data(), source.data.data(), source.data.size());
    return result;
  }

  SafetensorsFile file_;
};

/// The golden file of that name; nullopt, after saying SKIPPED, when there is none.
inline std::optional<Golden> load_golden(const std::string& name) {
  const char* folder = std::getenv("LOCKSTEP_GOLDEN");
  const std::filesystem::path path =
      std::filesystem::path(folder == nullptr ? "golden" : folder) / (name + ".safetensors");
  if (!std::filesystem::exists(path)) {
    std::cout << "SKIPPED: oracle " << name << ": " << path.string()
              << " is not there; tools/setup --dev installs PyTorch, CTest then makes it\n";
    return std::nullopt;
  }
  return Golden(read_safetensors(path));
}

/// Distances to the float64 reference, relative to its largest value.
struct Distance {
  double ours = 0;
  double torch = 0;
};

inline Distance distance(const std::vector<double>& reference, const std::vector<float>& torch,
                         const std::vector<float>& ours) {
  LOCKSTEP_CHECK(reference.size() == torch.size() && reference.size() == ours.size(), "expected ",
                 reference.size(), " values, got ", ours.size());
  double largest = 1e-30;
  Distance result;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    largest = std::max(largest, std::abs(reference[i]));
    result.torch = std::max(result.torch, std::abs(torch[i] - reference[i]));
    // Written so that a NaN of ours counts as infinitely far.
    const double error = std::abs(ours[i] - reference[i]);
    if (!(error <= result.ours)) result.ours = std::isnan(error) ? HUGE_VAL : error;
  }
  return {result.ours / largest, result.torch / largest};
}

/// Checks `ours` against the result `name`.
inline void check_result(const Golden& golden, const std::string& name,
                         const std::vector<float>& ours) {
  const Distance error =
      distance(golden.doubles(name + ".f64"), golden.floats(name + ".f32"), ours);
  CAPTURE(name);
  CAPTURE(error.torch);
  CHECK(error.ours <= kFactor * error.torch + kFloorUlps * 0x1p-24);
}

inline std::vector<float> download(Backend& backend, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
  if (!values.empty()) backend.download(values.data(), tensor);
  backend.synchronize();
  return values;
}

inline std::vector<float> download(Backend& backend, const float* data, std::int64_t elements) {
  return download(backend, Tensor(const_cast<float*>(data), Shape{1, elements}));
}

inline void upload(Backend& backend, const Tensor& tensor, const float* values) {
  if (tensor.shape.elements() > 0) backend.upload(tensor, values);
  backend.synchronize();
}

/// Squared errors and squares of the reference, summed.
struct Norms {
  double ours = 0, torch = 0, reference = 0;

  void add(const Norms& other) {
    ours += other.ours, torch += other.torch, reference += other.reference;
  }
};

inline Norms norms(const std::vector<double>& reference, const std::vector<float>& torch,
                   const std::vector<float>& ours) {
  REQUIRE(ours.size() == reference.size());
  Norms sum;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    sum.ours += (ours[i] - reference[i]) * (ours[i] - reference[i]);
    sum.torch += (torch[i] - reference[i]) * (torch[i] - reference[i]);
    sum.reference += reference[i] * reference[i];
  }
  return sum;
}

inline void check_norms(const std::string& what, const Norms& sum) {
  CAPTURE(what);
  const double torch_error = std::sqrt(sum.torch / sum.reference);
  const double our_error = std::sqrt(sum.ours / sum.reference);
  // Not <=: a NaN must fail. The floor is one rounding of every value.
  CHECK(our_error < kFactor * torch_error + 0x1p-24);
}

}  // namespace lockstep::oracle
