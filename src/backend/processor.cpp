#include "backend/processor.h"

#include <fstream>
#include <map>

#include "lockstep/core/check.h"

namespace lockstep {

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

}  // namespace lockstep
