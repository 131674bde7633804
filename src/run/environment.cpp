#include "run/environment.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <toml++/toml.h>
#include <unistd.h>
#include <xxhash.h>

#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

#include "backend/cpu_kernels.h"
#include "run/choices.h"

namespace lockstep {
namespace {

// The first value of `key` in a "key : value" file of /proc.
std::string proc_value(const char* path, const std::string& key) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find(':');
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (colon != std::string::npos && begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

Json libraries() {
  return {{"fmt", FMT_VERSION},
          {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                        NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
          {"tomlplusplus", fmt::format("{}.{}.{}", TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH)},
          {"xxhash", XXH_VERSION_NUMBER}};
}

}  // namespace

Json describe_environment(std::span<const Device> devices) {
  utsname system{};
  uname(&system);
  const std::time_t now = std::time(nullptr);
  Json names = Json::array();
  for (const Device& device : devices) names.push_back(to_string(device));
  return {{"lockstep", LOCKSTEP_VERSION},
          {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
          {"host", system.nodename},
          {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"cpu", proc_value("/proc/cpuinfo", "model name")},
          {"kernels", cpu_kernels().name},
          {"bf16_products", cpu_kernels().bf16_products()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory", proc_value("/proc/meminfo", "MemTotal")},
          {"devices", names},
          {"compiler", __VERSION__},
          {"cxx", __cplusplus},
          {"libraries", libraries()},
          {"choices", describe_choices()}};
}

std::string program_hash() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  std::vector<char> piece(std::size_t{1} << 20U);
  XXH64_hash_t hash = 0;
  do {
    program.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash = XXH3_64bits_withSeed(piece.data(), static_cast<std::size_t>(program.gcount()), hash);
  } while (program);
  return fmt::format("{:016x}", hash);
}

double peak_memory_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

}  // namespace lockstep
