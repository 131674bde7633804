#include "lockstep/backend/examine.h"

#include <omp.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "backend/cpu/convolution.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

std::string processor_name() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

double memory_gib(int pages) {
  return static_cast<double>(sysconf(pages)) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
         static_cast<double>(1U << 30U);
}

Finding threads() {
  const int cores = omp_get_num_procs();
  const char* limit = std::getenv("OMP_NUM_THREADS");
  if (limit != nullptr && std::atoi(limit) < cores) {
    return {false, "threads", concat(limit, " of ", cores, " cores"),
            concat("OMP_NUM_THREADS=", limit, " is set; unset it to use all cores")};
  }
  return {true, "threads", concat(cores, " cores; a virtual device gets its share of them"), ""};
}

}  // namespace

std::vector<Finding> examine_cpu() {
  const bool avx512 = dnnl_uses_avx512();
  return {{true, "processor", processor_name(), ""},
          threads(),
          {true, "memory",
           concat(static_cast<int>(memory_gib(_SC_PHYS_PAGES)), " GiB, ",
                  static_cast<int>(memory_gib(_SC_AVPHYS_PAGES)), " free"),
           ""},
          {true, "convolutions",
           avx512 ? "oneDNN with AVX-512" : "3x3 by Winograd F(2x2,3x3), others by oneDNN", ""}};
}

}  // namespace lockstep
