#pragma once
// Pieces of a file that is not believed: what is asked for is held against the file's length before
// anything is allocated.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// What keeps a file from being read: "No such file or directory", "Permission denied", "it is a
/// folder"; empty where nothing does.
std::string why_unreadable(const std::filesystem::path& path);

/// Opens a file to read, and gives its length. Throws DataError, without the file's name, that says
/// what the system said.
std::ifstream open_to_read(const std::filesystem::path& path, std::uint64_t& bytes);

/// Used by one thread. Complaints are DataErrors that leave the file's name to the caller.
class FileBytes {
 public:
  /// Throws DataError when there is no such file, or it cannot be read.
  explicit FileBytes(const std::filesystem::path& path) : stream_(open_to_read(path, size_)) {}

  std::uint64_t size() const { return size_; }
  /// Whether `bytes` bytes from `offset` on lie in the file.
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= size_ && bytes <= size_ - offset;
  }
  /// Throws DataError when the file does not hold them.
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t bytes);
  /// Its first `bytes` bytes, or all where it has fewer.
  std::vector<std::byte> head(std::uint64_t bytes);

 private:
  std::uint64_t size_ = 0;
  std::ifstream stream_;
};

/// A file, or one in memory, of which parts are read as libtiff asks for them.
class RandomBytes {
 public:
  explicit RandomBytes(std::span<const std::uint8_t> memory)
      : memory_(memory), size_(memory.size()) {}
  /// Throws DataError where it cannot be opened.
  explicit RandomBytes(const std::filesystem::path& path);
  ~RandomBytes();
  RandomBytes(const RandomBytes&) = delete;
  RandomBytes& operator=(const RandomBytes&) = delete;

  std::uint64_t size() const { return size_; }
  /// Fewer where it ends, or reading fails.
  std::size_t read(std::uint64_t offset, void* out, std::size_t count) const;

 private:
  std::span<const std::uint8_t> memory_;
  int file_ = -1;  // in place of memory
  std::uint64_t size_ = 0;
};

/// The number whose bytes these are, the lowest first. REQUIRES: at most 8 bytes.
std::uint64_t little_endian(std::span<const std::byte> bytes);

}  // namespace lockstep
