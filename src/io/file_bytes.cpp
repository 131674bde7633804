#include "io/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/system_text.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace fs = std::filesystem;

std::string why_unreadable(const fs::path& path) {
  std::error_code unknown;
  if (::access(path.c_str(), R_OK) != 0) return system_text(errno);
  if (fs::is_directory(path, unknown)) return "it is a folder";
  return fs::is_regular_file(path, unknown) ? "" : "it is no plain file";
}

std::ifstream open_to_read(const fs::path& path, std::uint64_t& bytes) {
  std::error_code error;
  const bool regular = fs::is_regular_file(path, error);
  if (error) throw DataError(concat("it cannot be read: ", error.message()));
  if (!regular) throw DataError("it cannot be read: it is a folder or a device, no file");
  bytes = fs::file_size(path);
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) throw DataError(concat("it cannot be read: ", system_text(errno)));
  return stream;
}

std::vector<std::byte> FileBytes::read(std::uint64_t offset, std::uint64_t bytes) {
  if (!holds(offset, bytes)) {
    throw DataError(concat("it should have ", bytes, " bytes from byte ", offset, " on, but has ",
                           size_, " in all; the file may be cut off"));
  }
  std::vector<std::byte> read(bytes);
  stream_.seekg(static_cast<std::streamoff>(offset));
  stream_.read(reinterpret_cast<char*>(read.data()), static_cast<std::streamsize>(bytes));
  if (stream_.gcount() != static_cast<std::streamsize>(bytes)) {
    throw DataError(stream_.bad() ? concat("it cannot be read: ", system_text(errno))
                                  : std::string("it ended while being read"));
  }
  return read;
}

std::vector<std::byte> FileBytes::head(std::uint64_t bytes) {
  return read(0, std::min(bytes, size_));
}

RandomBytes::RandomBytes(const std::filesystem::path& path)
    : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat about {};
  if (file_ < 0 || ::fstat(file_, &about) != 0)
    throw DataError(concat(path.string(), ": cannot be read: ", system_text(errno)));
  size_ = static_cast<std::uint64_t>(about.st_size);
}

RandomBytes::~RandomBytes() {
  if (file_ >= 0) ::close(file_);
}

std::size_t RandomBytes::read(std::uint64_t offset, void* out, std::size_t count) const {
  if (offset >= size_) return 0;
  count = static_cast<std::size_t>(std::min<std::uint64_t>(count, size_ - offset));
  if (file_ < 0) {
    std::memcpy(out, memory_.data() + offset, count);
    return count;
  }
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(file_, static_cast<char*>(out) + done, count - done,
                                static_cast<off_t>(offset + done));
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

}  // namespace lockstep
