#include "io/written_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <string>
#include <utility>

#include "core/system_text.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Of the folder that `path` lies in, without links; "." for a bare name.
fs::path folder_of(const fs::path& path) {
  std::error_code unknown;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path folder = fs::canonical(parent, unknown);
  return unknown ? parent : folder;
}

/// Where the links of `path` lead, also to a file that is not there yet. Links in a folder of
/// descriptors (/proc/self/fd) are no names, and stay.
fs::path without_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as Linux has it
  std::error_code none;
  const fs::path descriptors = fs::canonical("/proc/self/fd", none);
  for (int i = 0; i < kMostLinks; ++i) {
    const fs::path folder = folder_of(path);
    path = folder / path.filename();
    if (folder == descriptors) return path;
    const fs::path link = fs::read_symlink(path, none);
    if (none) return path;
    path = link.is_absolute() ? link : folder / link;
  }
  throw_file_error("open", path, ELOOP);
}

/// The descriptor of this process that `target` stands for; -1: none.
int descriptor_of(const fs::path& target) {
  std::error_code none;
  const std::string name = target.filename().string();
  int descriptor = -1;
  if (target.parent_path() != fs::canonical("/proc/self/fd", none)) return -1;
  std::from_chars(name.data(), name.data() + name.size(), descriptor);
  return descriptor;
}

/// Beside the target, of a name that no other file of this process has. Names of files end at 255
/// bytes.
fs::path temporary_name(const fs::path& target) {
  static std::atomic<unsigned> count{0};
  const std::string end = concat(".", getpid(), "-", ++count, ".tmp");
  constexpr std::size_t kLongest = 255;
  return target.parent_path() / (target.filename().string().substr(0, kLongest - end.size()) + end);
}

int open_temporary(const fs::path& path, mode_t mode) {
  unlink(path.c_str());  // what a process of this id left when it was killed
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
}

int open_target(const fs::path& target, bool exists) {
  const int descriptor = descriptor_of(target);
  if (descriptor >= 0) return fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return open(target.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | (exists ? 0 : O_CREAT), 0666);
}

}  // namespace

void throw_file_error(const char* what, const fs::path& path, int error) {
  throw Error(concat("cannot ", what, " ", path.string(), ": ", system_text(error)));
}

WrittenFile::WrittenFile(fs::path path, Mode mode)
    : path_(std::move(path)), target_(without_links(path_)) {
  struct stat status {};
  const bool exists = stat(target_.c_str(), &status) == 0;
  const bool plain = descriptor_of(target_) < 0 && (!exists || S_ISREG(status.st_mode));
  if (mode == Mode::kReplace && plain) temporary_ = temporary_name(target_);
  descriptor_ =
      temporary_.empty() ? open_target(target_, exists) : open_temporary(temporary_, 0666);
  if (descriptor_ < 0) throw_file_error("open", path_, errno);
  named_ = plain && temporary_.empty();
  constexpr mode_t kPermissions = 0777;
  const bool kept =
      temporary_.empty() || !exists || fchmod(descriptor_, status.st_mode & kPermissions) == 0;
  static_cast<void>(kept);  // some file systems know no permissions
}

WrittenFile::WrittenFile(WrittenFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      named_(other.named_),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

WrittenFile::~WrittenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void WrittenFile::write(std::string_view bytes) {
  struct stat status {};
  if (named_ && fstat(descriptor_, &status) == 0 && status.st_nlink == 0)
    throw_file_error("write", path_, ENOENT);
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_file_error("write", path_, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void WrittenFile::write_at(std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_file_error("write", path_, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

// Pipes and devices have no disk behind them (EINVAL, EROFS or ENOTSUP).
void WrittenFile::sync() {
  if (fsync(descriptor_) == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP) return;
  throw_file_error("sync", path_, errno);
}

void WrittenFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) throw_file_error("close", path_, errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), target_.c_str()) != 0) throw_file_error("replace", path_, errno);
  temporary_.clear();
}

// Some file systems cannot sync a folder; the file is complete all the same.
void WrittenFile::sync_name() const {
  const fs::path folder = target_.parent_path();
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error("open", folder, errno);
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP) throw_file_error("sync", folder, error);
}

}  // namespace lockstep
