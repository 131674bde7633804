#pragma once
// The zip archives that torch.save writes: entries stored as they are, sizes also in ZIP64.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/file_bytes.h"

namespace lockstep {

/// Used by one thread. Throws DataError, without the file's name, for what is damaged or not of the
/// kind: checksums, sizes that the file does not have, entries twice, compressed or encrypted ones.
class ZipArchive {
 public:
  struct Entry {
    std::uint64_t local_header = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
    std::uint16_t flags = 0;
    std::uint16_t method = 0;
  };

  /// Reads the directory. `file` must outlive the archive.
  explicit ZipArchive(const FileBytes& file);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  /// The contents of an entry, which must have its checksum.
  std::vector<std::byte> read(const std::string& name);

 private:
  void read_directory(std::uint64_t count, std::uint64_t bytes);
  std::uint64_t data_of(const std::string& name, const Entry& entry);

  const FileBytes& file_;
  std::uint64_t directory_ = 0;  // where it begins, and the entries' data ends
  std::map<std::string, Entry> entries_;
};

/// CRC-32 (ISO 3309: polynomial 0xEDB88320, reflected).
std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace lockstep
