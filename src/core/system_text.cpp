#include "core/system_text.h"

#include <cerrno>
#include <cstring>

namespace lockstep {

std::string system_text(int error) {
  const std::string text = std::strerror(error);
  if (error == EMFILE) return text + "; allow more open files (ulimit -n)";
  if (error == EFBIG) return text + "; a limit of file sizes forbids it (ulimit -f)";
  return text;
}

}  // namespace lockstep
