#include "io/pth_zip.h"

#include <zlib.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kLocalHeader = 0x04034b50;
constexpr std::uint32_t kDirectoryEntry = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50;
constexpr std::uint32_t kLocator64 = 0x07064b50;

constexpr std::uint64_t kLocalHeaderBytes = 30;
constexpr std::uint64_t kDirectoryEntryBytes = 46;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kLocator64Bytes = 20;
constexpr std::uint64_t kMaxComment = 0xffff;

constexpr std::uint64_t kIn64 = 0xffffffff;  // a size that the ZIP64 field has
constexpr std::uint64_t kSizes64 = 0x0001;   // that field's id
constexpr std::uint16_t kEncrypted = 1;      // a flag

std::uint64_t number(Bytes bytes, std::size_t at, std::size_t length) {
  return little_endian(bytes.subspan(at, length));
}

std::string text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The directory's place, as one of the two records at the end of an archive gives it.
struct End {
  std::uint64_t at;  // where the record is
  std::uint64_t count, bytes, offset;
};

// The record lies at the very end, but for a comment.
End find_end(const FileBytes& file) {
  const std::uint64_t tail = std::min(file.size(), kEndBytes + kMaxComment);
  const std::vector<std::byte> bytes = file.read(file.size() - tail, tail);
  for (std::uint64_t comment = 0; comment + kEndBytes <= tail; ++comment) {
    const Bytes end = Bytes(bytes).subspan(tail - kEndBytes - comment);
    if (number(end, 0, 4) != kEnd || number(end, 20, 2) != comment) continue;
    return {file.size() - kEndBytes - comment, number(end, 10, 2), number(end, 12, 4),
            number(end, 16, 4)};
  }
  throw DataError("its zip directory is missing at the end; the file may be cut off");
}

std::optional<End> find_end64(const FileBytes& file, std::uint64_t end) {
  if (end < kLocator64Bytes) return std::nullopt;
  const std::vector<std::byte> locator = file.read(end - kLocator64Bytes, kLocator64Bytes);
  if (number(locator, 0, 4) != kLocator64) return std::nullopt;
  const std::uint64_t at = number(locator, 8, 8);
  const std::vector<std::byte> record = file.read(at, kEnd64Bytes);
  if (number(record, 0, 4) != kEnd64) throw DataError("its ZIP64 directory record is damaged");
  return End{at, number(record, 32, 8), number(record, 40, 8), number(record, 48, 8)};
}

// Those of size, stored size and place that do not fit 32 bits stand in a field of their own, in
// this order.
void read_sizes64(Bytes extra, const std::string& name, std::uint64_t& size, std::uint64_t& stored,
                  std::uint64_t& place) {
  while (extra.size() >= 4) {
    const std::uint64_t id = number(extra, 0, 2), length = number(extra, 2, 2);
    if (length > extra.size() - 4) break;
    Bytes field = extra.subspan(4, length);
    extra = extra.subspan(4 + length);
    if (id != kSizes64) continue;
    for (std::uint64_t* value : {&size, &stored, &place}) {
      if (*value != kIn64) continue;
      if (field.size() < 8) throw DataError(concat("entry ", name, " lacks a size"));
      *value = number(field, 0, 8);
      field = field.subspan(8);
    }
    return;
  }
}

struct NamedEntry {
  std::string name;
  ZipArchive::Entry entry;
  std::uint64_t length;  // of its record in the directory
};

// The record that `directory` begins with.
NamedEntry read_entry(Bytes directory) {
  constexpr const char* kDamaged = "its zip directory is damaged";
  if (directory.size() < kDirectoryEntryBytes || number(directory, 0, 4) != kDirectoryEntry) {
    throw DataError(kDamaged);
  }
  const std::uint64_t name_bytes = number(directory, 28, 2), extra_bytes = number(directory, 30, 2),
                      comment_bytes = number(directory, 32, 2);
  const std::uint64_t length = kDirectoryEntryBytes + name_bytes + extra_bytes + comment_bytes;
  if (length > directory.size()) throw DataError(kDamaged);
  std::string name = text(directory.subspan(kDirectoryEntryBytes, name_bytes));
  ZipArchive::Entry entry{.local_header = number(directory, 42, 4),
                          .bytes = number(directory, 24, 4),
                          .crc = static_cast<std::uint32_t>(number(directory, 16, 4)),
                          .flags = static_cast<std::uint16_t>(number(directory, 8, 2)),
                          .method = static_cast<std::uint16_t>(number(directory, 10, 2))};
  std::uint64_t stored = number(directory, 20, 4);
  const Bytes extra = directory.subspan(kDirectoryEntryBytes + name_bytes, extra_bytes);
  read_sizes64(extra, name, entry.bytes, stored, entry.local_header);
  if (entry.method == 0 && stored != entry.bytes) {
    throw DataError(concat("entry ", name, " has ", stored, " bytes for ", entry.bytes));
  }
  return {std::move(name), entry, length};
}

void check_stored(const std::string& name, const ZipArchive::Entry& entry) {
  if ((entry.flags & kEncrypted) != 0) throw DataError(concat("entry ", name, " is encrypted"));
  if (entry.method != 0) {
    throw DataError(concat("entry ", name, " is compressed (method ", entry.method,
                           "), but torch.save stores entries as they are: unpack the file and "
                           "write it with torch.save again"));
  }
}

}  // namespace

ZipArchive::ZipArchive(const FileBytes& file) : file_(file) {
  End end = find_end(file);
  if (const auto end64 = find_end64(file, end.at)) end = *end64;
  if (end.offset > end.at || end.bytes > end.at - end.offset) {
    throw DataError(concat("its zip directory should have ", end.bytes, " bytes from byte ",
                           end.offset, " on, but the archive ends at byte ", end.at));
  }
  directory_ = end.offset;
  read_directory(end.count, end.bytes);
}

void ZipArchive::read_directory(std::uint64_t count, std::uint64_t bytes) {
  const std::vector<std::byte> directory = file_.read(directory_, bytes);
  Bytes rest(directory);
  while (!rest.empty()) {
    const auto [name, entry, length] = read_entry(rest);
    if (!entries_.emplace(name, entry).second) {
      throw DataError(concat("its zip directory has ", name, " twice"));
    }
    rest = rest.subspan(length);
  }
  if (entries_.size() != count) {
    throw DataError(
        concat("its zip directory should have ", count, " entries, but has ", entries_.size()));
  }
}

std::vector<std::byte> ZipArchive::read(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw DataError(concat("entry ", name, " is missing"));
  const Entry& entry = found->second;
  check_stored(name, entry);
  const std::uint64_t begin = data_of(name, entry);
  if (begin > directory_ || entry.bytes > directory_ - begin) {
    throw DataError(concat("entry ", name, " should have ", entry.bytes, " bytes from byte ", begin,
                           " on, but the zip directory begins at byte ", directory_));
  }
  std::vector<std::byte> bytes = file_.read(begin, entry.bytes);
  if (crc32(bytes) != entry.crc) {
    throw DataError(concat("entry ", name, " is damaged: its checksum (CRC-32) is wrong"));
  }
  return bytes;
}

// Behind the entry's own header, whose lengths are not those of the directory.
std::uint64_t ZipArchive::data_of(const std::string& name, const Entry& entry) {
  const std::vector<std::byte> header = file_.read(entry.local_header, kLocalHeaderBytes);
  const std::uint64_t name_at = entry.local_header + kLocalHeaderBytes;
  const std::uint64_t name_bytes = number(header, 26, 2), extra_bytes = number(header, 28, 2);
  if (number(header, 0, 4) != kLocalHeader || text(file_.read(name_at, name_bytes)) != name) {
    throw DataError(concat("entry ", name, " is not where the zip directory says"));
  }
  return name_at + name_bytes + extra_bytes;
}

std::uint32_t crc32(std::span<const std::byte> bytes) {
  const uLong start = ::crc32_z(0, nullptr, 0);
  return static_cast<std::uint32_t>(
      ::crc32_z(start, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace lockstep
