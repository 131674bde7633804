#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "io/written_file.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

// A file of that name, which disappears again unless it is renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& path) : file_(path, WrittenFile::Mode::kReplace) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) unlink(file_.path().c_str());
  }

  void write(std::string_view bytes) { file_.write(bytes); }

  // The data must be on the disk before the name is: else a crash may leave the new name with
  // nothing in it.
  void rename_to(const fs::path& target) {
    file_.sync();
    file_.close();
    if (rename(file_.path().c_str(), target.c_str()) != 0) {
      throw_file_error("replace", target, errno);
    }
    renamed_ = true;
  }

 private:
  WrittenFile file_;
  bool renamed_ = false;
};

// Makes the new name itself durable. Some file systems cannot sync a folder; the file is complete
// all the same.
void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error("open", folder, errno);
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP) throw_file_error("sync", folder, error);
}

}  // namespace

void write_parts_atomically(const fs::path& path, std::span<const std::string_view> parts) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string name = path.filename().string();
  try {
    // The process id keeps two runs that write the same file from mixing their bytes.
    TemporaryFile file(folder / (name + "." + std::to_string(getpid()) + ".tmp"));
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
