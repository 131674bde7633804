#include "io/written_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

int flags_of(WrittenFile::Mode mode) {
  const int how = mode == WrittenFile::Mode::kAppend ? O_APPEND : O_TRUNC;
  return O_WRONLY | O_CREAT | O_CLOEXEC | how;
}

}  // namespace

void throw_file_error(const char* what, const std::filesystem::path& path, int error) {
  throw Error(concat("cannot ", what, " ", path.string(), ": ", std::strerror(error)));
}

WrittenFile::WrittenFile(std::filesystem::path path, Mode mode)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), flags_of(mode), 0666)) {
  if (descriptor_ < 0) throw_file_error("open", path_, errno);
}

WrittenFile::~WrittenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void WrittenFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_file_error("write", path_, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void WrittenFile::sync() {
  if (fsync(descriptor_) != 0) throw_file_error("sync", path_, errno);
}

void WrittenFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) throw_file_error("close", path_, errno);
}

}  // namespace lockstep
