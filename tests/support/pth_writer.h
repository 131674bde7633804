#pragma once
// PyTorch's files of weights, written by hand: pickles as text, zip archives and the format before
// them, sound ones and such that lie.

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/pth_zip.h"

namespace lockstep::test::pth {

// --- pickles ---

inline std::string number(std::uint64_t value, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::memcpy(text.data(), &value, bytes);
  return text;
}

inline std::string text(const std::string& value) { return "X" + number(value.size(), 4) + value; }
inline std::string integer(std::int64_t value) {
  return "\x8a\x08" + number(static_cast<std::uint64_t>(value), 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::string& items) { return "(" + items + "t"; }
inline std::string dict(const std::string& items) { return "}(" + items + "u"; }
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

inline std::string integers(const std::vector<std::int64_t>& values) {
  std::string items;
  for (const std::int64_t value : values) items += integer(value);
  return tuple(items);
}

inline std::string storage(const std::string& type, const std::string& key, std::int64_t elements) {
  return tuple(text("storage") + global("torch", type) + text(key) + text("cpu") +
               integer(elements)) +
         "Q";
}

inline std::string tensor(const std::string& storage, std::int64_t offset,
                          const std::vector<std::int64_t>& size,
                          const std::vector<std::int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple(storage + integer(offset) + integers(size) + integers(strides) + "\x89" +
               global("collections", "OrderedDict") + ")R") +
         "R";
}

// --- zip archives ---

struct Entry {
  std::string name, data;
  std::uint64_t method = 0;
  std::uint64_t flags = 0;
};

struct ZipOptions {
  bool zip64 = false;           // sizes and places in ZIP64 fields and records alone
  std::int64_t more_bytes = 0;  // that the directory says of each entry
  std::uint64_t more_entries = 0;
  std::int64_t displaced = 0;  // places of entries
  std::string comment = {};
};

inline std::string directory_entry(const Entry& entry, std::uint64_t place,
                                   const ZipOptions& options) {
  const std::uint64_t bytes = entry.data.size() + static_cast<std::uint64_t>(options.more_bytes);
  place += static_cast<std::uint64_t>(options.displaced);
  const auto crc = crc32(std::as_bytes(std::span(entry.data)));
  const auto narrow = [&](std::uint64_t value) {
    return number(options.zip64 ? 0xffffffff : value, 4);
  };
  const std::string wide = number(0x7777, 2) + number(2, 2) + "xx" + number(1, 2) + number(24, 2) +
                           number(bytes, 8) + number(bytes, 8) + number(place, 8);
  const std::string extra = options.zip64 ? wide : "";
  return "PK\x01\x02" + number(20, 2) + number(20, 2) + number(entry.flags, 2) +
         number(entry.method, 2) + number(0, 4) + number(crc, 4) + narrow(bytes) + narrow(bytes) +
         number(entry.name.size(), 2) + number(extra.size(), 2) + number(0, 2) + number(0, 2) +
         number(0, 2) + number(0, 4) + narrow(place) + entry.name + extra;
}

// As torch.save: local headers without sizes, padded so that data is aligned.
inline std::string zip(const std::vector<Entry>& entries, const ZipOptions& options = {}) {
  std::string file, directory;
  for (const Entry& entry : entries) {
    directory += directory_entry(entry, file.size(), options);
    file += "PK\x03\x04" + number(20, 2) + number(0x808, 2) + number(entry.method, 2) +
            std::string(16, '\0') + number(entry.name.size(), 2) + number(5, 2) + entry.name +
            "FB" + number(1, 2) + "Z" + entry.data;
  }
  const std::uint64_t place = file.size(), count = entries.size() + options.more_entries;
  file += directory;
  const std::uint64_t end = file.size();
  if (options.zip64) {
    file += "PK\x06\x06" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
            number(count, 8) + number(count, 8) + number(directory.size(), 8) + number(place, 8);
    file += "PK\x06\x07" + number(0, 4) + number(end, 8) + number(1, 4);
  }
  const std::uint64_t none = options.zip64 ? ~std::uint64_t{0} : 0;
  return file + "PK\x05\x06" + number(0, 4) + number(count | none, 2) + number(count | none, 2) +
         number(directory.size() | none, 4) + number(place | none, 4) +
         number(options.comment.size(), 2) + options.comment;
}

using Storages = std::map<std::string, std::string>;

inline std::vector<Entry> entries_of(const std::string& value, const Storages& storages) {
  std::vector<Entry> entries = {{"archive/data.pkl", pickle(value)}};
  for (const auto& [key, bytes] : storages) entries.push_back({"archive/data/" + key, bytes});
  entries.push_back({"archive/version", "3\n"});
  return entries;
}

inline std::string archive(const std::string& value, const Storages& storages) {
  return zip(entries_of(value, storages));
}

// --- the format before zip archives ---

inline std::string legacy(const std::string& value, const Storages& storages, std::size_t width,
                          const std::string& little_endian = "\x88") {
  std::string keys, data;
  for (const auto& [key, bytes] : storages) {
    keys += text(key);
    data += number(bytes.size() / width, 8) + bytes;
  }
  const std::string magic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12);
  return pickle(magic) + pickle(integer(1001)) +
         pickle(dict(text("little_endian") + little_endian)) + pickle(value) +
         pickle("](" + keys + "e") + data;
}

}  // namespace lockstep::test::pth
