#pragma once
// The CPU's operations (backend/cpu) are compiled once for each instruction set. This is what the
// rest of the program sees of them: the sets that are in this program, and the one that this
// process computes with.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// The name of oneDNN's convolutions among choices; the others are ours.
inline constexpr const char* kOneDnnConvolutions = "onednn";

/// One set.
struct CpuKernels {
  std::string name;  // "avx2", "avx512", "portable"; "generic" where there is but one
  /// Whether neither a clock nor the user chooses convolutions, but a fixed list: every processor
  /// with these instructions then computes the same bits.
  bool fixed_convolutions = false;
  /// Throws Error where oneDNN has already used more instructions than these in this process.
  std::unique_ptr<Backend> (*make_backend)(const Device& device, int threads,
                                           const BackendOptions& options);
  /// What bf16 numbers are multiplied by on this processor: "AMX", "AVX512-BF16", or "" where fp32
  /// is as fast.
  std::string (*bf16_products)();
  /// What choices of convolutions hold for: the processor, and the libraries that compute.
  std::string (*conv_machine)();
  /// Multiply-adds, as many as the processor can do: a yardstick. Returns the floating-point
  /// operations that were done.
  std::int64_t (*multiply_add)(std::int64_t iterations);
};

/// The sets that this process can choose from, because they are in this program and the processor
/// has their instructions. The last one is the fastest.
const std::vector<CpuKernels>& usable_cpu_kernels();

/// The set that this process computes with: the one that use_cpu_kernels() named, else
/// $LOCKSTEP_CPU, else the fastest. Decided by the first call. Any thread. Throws ConfigError where
/// $LOCKSTEP_CPU names none that is usable.
const CpuKernels& cpu_kernels();

}  // namespace lockstep
