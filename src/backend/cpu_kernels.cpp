#include "backend/cpu_kernels.h"

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "lockstep/core/check.h"

// The sets that are linked (backend/CMakeLists.txt): one that is compiled as everything else is,
// and others. Their names are C's, so that a linker can be told to keep them and no other.
extern "C" {
lockstep::CpuKernels lockstep_cpu_base();
#ifdef LOCKSTEP_AVX512_KERNELS
lockstep::CpuKernels lockstep_cpu_avx512();
#endif
}

namespace lockstep {
namespace {

std::vector<CpuKernels> find_usable() {
  std::vector<CpuKernels> usable;
  const CpuKernels base = lockstep_cpu_base();
#ifdef LOCKSTEP_PORTABLE_KERNELS
  usable.push_back(base);
  usable.back().name = "portable";
  usable.back().fixed_convolutions = true;
#endif
  usable.push_back(base);
#ifdef LOCKSTEP_AVX512_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd")) {
    usable.push_back(lockstep_cpu_avx512());
  }
#endif
  return usable;
}

const CpuKernels& named(const std::string& name, const char* who) {
  std::string known;
  for (const CpuKernels& kernels : usable_cpu_kernels()) {
    if (kernels.name == name) return kernels;
    known += concat(known.empty() ? "" : ", ", kernels.name);
  }
  throw ConfigError(concat(who,
                           ": expected kernels that this program has and this processor runs, ",
                           known, "; got '", name, "'"));
}

std::mutex mutex;
std::atomic<const CpuKernels*> chosen = nullptr;

}  // namespace

const std::vector<CpuKernels>& usable_cpu_kernels() {
  static const std::vector<CpuKernels> usable = find_usable();
  return usable;
}

const CpuKernels& cpu_kernels() {
  if (const CpuKernels* kernels = chosen) return *kernels;
  const std::lock_guard lock(mutex);
  if (chosen == nullptr) {
    const char* name = std::getenv("LOCKSTEP_CPU");
    chosen = name != nullptr && *name != '\0' ? &named(name, "LOCKSTEP_CPU")
                                              : &usable_cpu_kernels().back();
  }
  return *chosen;
}

void use_cpu_kernels(const std::string& name) {
  const CpuKernels& kernels = named(name, "the kernels of the CPU");
  const std::lock_guard lock(mutex);
  if (chosen != nullptr && chosen != &kernels) {
    throw ConfigError(concat("this process already computes with the CPU's kernels '",
                             chosen.load()->name, "'; '", name,
                             "' must be asked for before anything is computed, or for a process "
                             "by LOCKSTEP_CPU=",
                             name));
  }
  chosen = &kernels;
}

}  // namespace lockstep
