#include "train/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "lockstep/core/check.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "this machine";
}

/// " (process 12 on node7)"; nothing where the holder has not written it yet.
std::string holder_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string text;
  return std::getline(stream, text) && !text.empty() ? concat(" (", text, ")") : "";
}

}  // namespace

RunLock::RunLock(const fs::path& root) : file_(root / "lock") {
  make_folders(root);
  // Who held the file may have removed it between the opening and the locking.
  do {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return;
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) continue;
    const bool held = errno == EWOULDBLOCK;
    close(descriptor_);
    descriptor_ = -1;
    if (!held) return;
    throw ConfigError(concat(root.string(), " is in use by another training", holder_of(file_),
                             "; wait for it, or train into another folder with -o"));
  } while (!names_what_is_held());
  write_holder();
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) {
    unlink(file_.c_str());
    close(descriptor_);
  }
  remove_empty_folders();
}

void RunLock::make_folders(const fs::path& root) {
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path folder = fs::absolute(root, error).lexically_normal();
       !error && folder != folder.parent_path() && !fs::exists(folder, error);
       folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  std::reverse(missing.begin(), missing.end());
  for (const fs::path& folder : missing) {
    if (fs::create_directory(folder, error)) made_.push_back(folder);
  }
}

void RunLock::remove_empty_folders() const {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) rmdir(folder->c_str());
}

bool RunLock::names_what_is_held() const {
  struct stat held {
  }, named{};
  return fstat(descriptor_, &held) == 0 && stat(file_.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

void RunLock::write_holder() const {
  const std::string text = concat("process ", getpid(), " on ", host_name(), "\n");
  const bool written =
      ftruncate(descriptor_, 0) == 0 &&
      write(descriptor_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  static_cast<void>(written);  // on a full disk the lock holds all the same
}

}  // namespace lockstep
