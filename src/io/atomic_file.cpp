#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void throw_io_error(const char* what, const fs::path& path, int error) {
  throw Error(concat("cannot ", what, " ", path.string(), ": ", std::strerror(error)));
}

// A file of that name, open for writing, which disappears again unless it is `kept`.
class TemporaryFile {
 public:
  explicit TemporaryFile(fs::path path)
      : path_(std::move(path)),
        descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) throw_io_error("create", path_, errno);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!path_.empty()) unlink(path_.c_str());
  }

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_io_error("write", path_, errno);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  // The data must be on the disk before the name is: else a crash may leave the new name with
  // nothing in it.
  void rename_to(const fs::path& target) {
    if (fsync(descriptor_) != 0) throw_io_error("sync", path_, errno);
    const int closed = close(std::exchange(descriptor_, -1));
    if (closed != 0) throw_io_error("close", path_, errno);
    if (rename(path_.c_str(), target.c_str()) != 0) throw_io_error("replace", target, errno);
    path_.clear();
  }

 private:
  fs::path path_;
  int descriptor_;
};

// Makes the new name itself durable. Some file systems cannot sync a folder; the file is complete
// all the same.
void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_io_error("open", folder, errno);
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP) throw_io_error("sync", folder, error);
}

}  // namespace

void write_parts_atomically(const fs::path& path, std::span<const std::string_view> parts) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string name = path.filename().string();
  // The process id keeps two runs that write the same file from mixing their bytes.
  TemporaryFile file(folder / (name + "." + std::to_string(getpid()) + ".tmp"));
  try {
    for (const std::string_view part : parts) file.write(part);
    file.rename_to(path);
  } catch (const Error& error) {
    throw Error(concat("cannot save ", path.string(), ": ", error.what()));
  }
  sync_folder(folder);
}

void write_file_atomically(const fs::path& path, const std::string& bytes) {
  const std::string_view part = bytes;
  write_parts_atomically(path, {&part, 1});
}

}  // namespace lockstep
