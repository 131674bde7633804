// Loaded before a program (LD_PRELOAD), it lets one call fail that writes to a file below
// FAIL_BELOW: the FAIL_CALL-th, by the error FAIL_ERROR. FAIL_LOG gets a line for each such call:
// "write PATH".

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<int> calls{0};

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void note(const char* call, const char* path) {
  const char* log = std::getenv("FAIL_LOG");
  if (log == nullptr) return;
  std::array<char, 4600> line{};
  const int length = std::snprintf(line.data(), line.size(), "%s %s\n", call, path);
  const int file =
      real<int(const char*, int, ...)>("open")(log, O_WRONLY | O_APPEND | O_CREAT, 0666);
  static_cast<void>(real<ssize_t(int, const void*, std::size_t)>("write")(
      file, line.data(), static_cast<std::size_t>(length)));
  real<int(int)>("close")(file);
}

/// Whether this call is to fail. Its errno is set then.
bool fails(const char* call, const char* path) {
  const char* below = std::getenv("FAIL_BELOW");
  if (below == nullptr || std::strncmp(path, below, std::strlen(below)) != 0) return false;
  note(call, path);
  const char* which = std::getenv("FAIL_CALL");
  if (which == nullptr || ++calls != std::atoi(which)) return false;
  errno = std::atoi(std::getenv("FAIL_ERROR"));
  return true;
}

/// Of a descriptor that is written to; empty: of another.
std::array<char, 4096> path_of(int file) {
  std::array<char, 4096> path{};
  std::array<char, 64> link{};
  const int flags = fcntl(file, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) return path;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", file);
  static_cast<void>(readlink(link.data(), path.data(), path.size() - 1));
  return path;
}

bool fails(const char* call, int file) { return fails(call, path_of(file).data()); }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  if ((flags & O_ACCMODE) != O_RDONLY && fails("open", path)) return -1;
  return real<int(const char*, int, ...)>("open")(path, flags, mode);
}

ssize_t write(int file, const void* data, std::size_t count) {
  if (fails("write", file)) return -1;
  return real<ssize_t(int, const void*, std::size_t)>("write")(file, data, count);
}

int fsync(int file) { return fails("fsync", file) ? -1 : real<int(int)>("fsync")(file); }

int close(int file) {
  const bool failed = fails("close", file);
  const int error = errno;
  const int closed = real<int(int)>("close")(file);
  if (!failed) return closed;
  errno = error;
  return -1;
}

int rename(const char* from, const char* to) {
  return fails("rename", to) ? -1 : real<int(const char*, const char*)>("rename")(from, to);
}
}
