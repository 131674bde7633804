#include "lockstep/core/check.h"

#include <filesystem>

namespace lockstep::detail {

void throw_check_failure(const char* condition, const char* file, int line,
                         const std::string& message) {
  throw Error(concat(message, " [", condition, " at ",
                     std::filesystem::path(file).filename().string(), ":", line, "]"));
}

}  // namespace lockstep::detail
