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

FileBytes::FileBytes(const fs::path& path, const std::string& subject) {
  const auto unreadable = [&](const std::string& why) {
    return DataError(concat(subject, " cannot be read: ", why));
  };
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) throw unreadable(system_text(errno));
  if (!S_ISREG(about.st_mode)) throw unreadable("it is a folder or a device, no file");
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw unreadable(system_text(errno));
  size_ = static_cast<std::uint64_t>(about.st_size);
}

FileBytes::~FileBytes() {
  if (file_ >= 0) ::close(file_);
}

std::size_t FileBytes::read(std::uint64_t offset, void* out, std::size_t count) const {
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

std::vector<std::byte> FileBytes::read(std::uint64_t offset, std::uint64_t bytes) const {
  if (!holds(offset, bytes)) {
    throw DataError(concat("it should have ", bytes, " bytes from byte ", offset, " on, but has ",
                           size_, " in all; the file may be cut off"));
  }
  std::vector<std::byte> all(bytes);
  errno = 0;
  if (read(offset, all.data(), all.size()) == all.size()) return all;
  throw DataError(errno != 0 ? concat("it cannot be read: ", system_text(errno))
                             : std::string("it ended while being read"));
}

std::vector<std::byte> FileBytes::head(std::uint64_t bytes) const {
  return read(0, std::min(bytes, size_));
}

std::string text_of_file(const fs::path& path) {
  const std::vector<std::byte> bytes = FileBytes(path, "it").head(UINT64_MAX);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

}  // namespace lockstep
