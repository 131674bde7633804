#pragma once
// A file to write to. What goes wrong is an Error that names the file and says what the system
// said.

#include <filesystem>
#include <string_view>
#include <utility>

namespace lockstep {

/// Nothing is kept back in memory: what is written is the system's. Used by one thread.
class WrittenFile {
 public:
  enum class Mode { kReplace, kAppend };

  /// Throws Error.
  WrittenFile(std::filesystem::path path, Mode mode);
  WrittenFile(WrittenFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  /// Closes it, and says nothing.
  ~WrittenFile();

  const std::filesystem::path& path() const { return path_; }

  /// Throws Error; some of the bytes may then have been written.
  void write(std::string_view bytes);
  /// Brings all to the disk. Throws Error.
  void sync();
  /// Some file systems say only here that they could not write. Throws Error.
  void close();

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// Throws the Error that `what` ("write") cannot be done with the file; `error`: as errno.
[[noreturn]] void throw_file_error(const char* what, const std::filesystem::path& path, int error);

}  // namespace lockstep
