#include "backend/probe.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <ranges>

#include "backend/conv/autotuner.h"
#include "backend/cpu_kernels.h"
#include "backend/host_threads.h"
#include "core/words.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

double memory_gib(int pages) {
  return static_cast<double>(sysconf(pages)) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
         static_cast<double>(1U << 30U);
}

Diagnostic threads() {
  const std::string found = describe_host_threads();
  const char* limit = std::getenv("OMP_NUM_THREADS");
  if (limit != nullptr && std::atoi(limit) < omp_get_num_procs()) {
    return {false, "threads", found,
            concat("OMP_NUM_THREADS=", limit, " is set; unset it to use all cores")};
  }
  return {true, "threads", found + "; a virtual device gets its share of them", ""};
}

/// The instructions that this process computes with, and those that it could.
Diagnostic kernels() {
  const std::string usable =
      joined(usable_cpu_kernels() | std::views::transform(&CpuKernels::name));
  const std::string bf16 = cpu_kernels().bf16_products();
  return {true, "kernels",
          concat(cpu_kernels().name, "; LOCKSTEP_CPU chooses of ", usable,
                 bf16.empty() ? "" : concat("; ", bf16, " for run.precision = \"bf16\"")),
          ""};
}

/// Which implementations the file of choices has for this processor.
Diagnostic convolutions() {
  if (cpu_kernels().fixed_convolutions) {
    return {true, "convolutions", "the same everywhere, because the kernels are portable", ""};
  }
  const std::filesystem::path file = Autotuner::default_file();
  const Autotuner& tuner = Autotuner::of(file);
  if (tuner.file().empty()) {
    return {true, "convolutions", "by a fixed rule, because " + Autotuner::why_no_file(), ""};
  }
  const auto kept = tuner.kept(cpu_kernels().conv_machine());
  const auto onednn = std::count_if(kept.begin(), kept.end(), [](const auto& choice) {
    return choice.second == kOneDnnConvolutions;
  });
  Diagnostic found{
      true, "convolutions",
      concat("the fastest by the clock: ", kept.size(), " choices for this processor (",
             kept.size() - static_cast<std::size_t>(onednn), " for ours, ", onednn,
             " for oneDNN) in ", tuner.file().string()),
      ""};
  for (const auto& [problem, chosen] : kept) found.details.push_back(problem + ": " + chosen);
  return found;
}

}  // namespace

std::string processor_name() {
  std::ifstream stream("/proc/cpuinfo");
  std::map<std::string, std::string> first;  // of the first processor
  for (std::string line; std::getline(stream, line) && !line.empty();) {
    const std::size_t end = line.find_first_of("\t:");
    const std::size_t value = line.find(": ");
    if (value != std::string::npos) first.emplace(line.substr(0, end), line.substr(value + 2));
  }
  if (!first.contains("model name")) return "unknown";
  if (!first.contains("cpu family") || !first.contains("model")) return first["model name"];
  return concat(first["model name"], " (family ", first["cpu family"], ", model ", first["model"],
                ")");
}

std::vector<Diagnostic> probe_cpu() {
  return {{true, "processor", processor_name(), ""},
          kernels(),
          threads(),
          {true, "memory",
           concat(static_cast<int>(memory_gib(_SC_PHYS_PAGES)), " GiB, ",
                  static_cast<int>(memory_gib(_SC_AVPHYS_PAGES)), " free"),
           ""},
          convolutions()};
}

}  // namespace lockstep
