#include "run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include "lockstep/core/check.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "this machine";
}

fs::path lock_of(const fs::path& root) { return root / "lock"; }

/// "process 12 on node7"; nothing where the holder has not written it yet.
std::string holder_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string text;
  std::getline(stream, text);
  return text;
}

/// " (process 12 on node7)", or nothing.
std::string parenthesised(const std::string& holder) {
  return holder.empty() ? "" : concat(" (", holder, ")");
}

/// Who looks at the lock (run_lock_state) has it for an instant, and is no training.
bool lock_for_writing(int descriptor) {
  constexpr int kLooks = 5;
  for (int i = 0; flock(descriptor, LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK || i == kLooks) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace

RunLock::RunLock(const fs::path& root) : file_(lock_of(root)) {
  make_folders(root);
  // Who held the file may have removed it between the opening and the locking.
  do {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return;
    if (lock_for_writing(descriptor_)) continue;
    const bool held = errno == EWOULDBLOCK;
    close(descriptor_);
    descriptor_ = -1;
    if (!held) return;
    throw RunInUseError(concat(root.string(), " is in use by another training",
                               parenthesised(holder_of(file_)),
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
  std::ranges::reverse(missing);
  for (const fs::path& folder : missing) {
    if (fs::create_directory(folder, error)) made_.push_back(folder);
    if (!error) continue;
    remove_empty_folders();
    throw Error(concat("cannot make the run folder ", root.string(), ": ", folder.string(), ": ",
                       fs::is_symlink(folder) ? "a link that leads to nothing" : error.message()));
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

RunLockState run_lock_state(const fs::path& root) {
  const fs::path file = lock_of(root);
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return RunLockState::kUnknown;
  RunLockState state = RunLockState::kUnknown;
  if (flock(descriptor, LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) state = RunLockState::kHeld;
  } else if (holder_of(file).ends_with(concat(" on ", host_name()))) {
    // Locks may not reach from machine to machine.
    state = RunLockState::kLeft;
  }
  close(descriptor);
  return state;
}

}  // namespace lockstep
