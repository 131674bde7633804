#pragma once
// Every file that is written is opened here. What goes wrong is an Error that names the file and
// says what the system said.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

/// Links are followed, and what they lead to is written. What is no plain file, as a device, a pipe
/// or a descriptor of this process (/dev/stdout), is written through as it comes: nothing else ever
/// takes its name. Nothing is kept back in memory. Used by one thread.
class WrittenFile {
 public:
  enum class Mode {
    kReplace,  // a plain file in one piece, by close(); without that, what was there stays
    kAppend,
  };

  /// Throws Error.
  WrittenFile(std::filesystem::path path, Mode mode);
  WrittenFile(WrittenFile&& other) noexcept;
  WrittenFile& operator=(WrittenFile&&) = delete;
  /// Closes it, and says nothing.
  ~WrittenFile();

  const std::filesystem::path& path() const { return path_; }

  /// Throws Error; some of the bytes may then have been written. What is appended to a file that
  /// has been removed is an Error, too: nobody would find it.
  void write(std::string_view bytes);
  /// The same at a place of the file, as far as its end or beyond. REQUIRES: a plain file.
  void write_at(std::uint64_t offset, std::string_view bytes);
  /// Brings all to the disk, where there is one. Throws Error.
  void sync();
  /// Some file systems say only here that they could not write. Throws Error.
  void close();
  /// Makes the name of a replaced file durable too. REQUIRES: closed. Throws Error.
  void sync_name() const;

 private:
  std::filesystem::path path_;       // as it was given
  std::filesystem::path target_;     // where links lead
  std::filesystem::path temporary_;  // what close() renames to the target; empty: nothing
  bool named_ = false;               // a plain file that is appended to
  int descriptor_ = -1;
};

/// Throws the Error that `what` ("write") cannot be done with the file; `error`: as errno.
[[noreturn]] void throw_file_error(const char* what, const std::filesystem::path& path, int error);

}  // namespace lockstep
