#pragma once
// Pieces of a file that is not believed: what is asked for is held against the file's length before
// anything is allocated.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// What keeps a file from being read: "No such file or directory", "Permission denied", "it is a
/// folder"; empty where nothing does.
std::string why_unreadable(const std::filesystem::path& path);

/// A file of a file system, or one in memory, of which parts are read. Safe from any thread.
class FileBytes {
 public:
  explicit FileBytes(std::span<const std::uint8_t> memory)
      : memory_(memory), size_(memory.size()) {}
  /// Throws DataError, "PATH: cannot be read: Permission denied", where there is no such file, or
  /// it is none: a pipe is not opened.
  explicit FileBytes(const std::filesystem::path& path) : FileBytes(path, path.string() + ":") {}
  /// `subject`: what that error begins with in place of the path.
  FileBytes(const std::filesystem::path& path, const std::string& subject);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::uint64_t size() const { return size_; }
  /// Whether `bytes` bytes from `offset` on lie in the file.
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= size_ && bytes <= size_ - offset;
  }
  /// How many of `count` bytes were read: fewer where it ends, or reading fails.
  std::size_t read(std::uint64_t offset, void* out, std::size_t count) const;
  /// Throws DataError, without the file's name, when the file does not hold them.
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t bytes) const;
  /// Its first `bytes` bytes, or all where it has fewer.
  std::vector<std::byte> head(std::uint64_t bytes) const;

 private:
  std::span<const std::uint8_t> memory_;
  int file_ = -1;  // in place of memory
  std::uint64_t size_ = 0;
};

/// All of a file. Throws DataError, "it cannot be read: Permission denied".
std::string text_of_file(const std::filesystem::path& path);

/// The number whose bytes these are, the lowest first. REQUIRES: at most 8 bytes.
std::uint64_t little_endian(std::span<const std::byte> bytes);

}  // namespace lockstep
