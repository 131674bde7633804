#include "io/atomic_file.h"

#include "io/written_file.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void save(const fs::path& path, std::span<const std::string_view> parts, bool durably) {
  try {
    WrittenFile file(path, WrittenFile::Mode::kReplace);
    for (const std::string_view part : parts) file.write(part);
    // The data must be on the disk before the name is: else a crash may leave the new name with
    // nothing in it.
    if (durably) file.sync();
    file.close();
    if (durably) file.sync_name();
  } catch (const Error& error) {
    throw Error(concat("cannot save ", path.string(), ": ", error.what()));
  }
}

}  // namespace

void write_parts_atomically(const fs::path& path, std::span<const std::string_view> parts) {
  save(path, parts, true);
}

void write_parts(const fs::path& path, std::span<const std::string_view> parts) {
  save(path, parts, false);
}

void write_file_atomically(const fs::path& path, const std::string& bytes) {
  const std::string_view part = bytes;
  write_parts_atomically(path, {&part, 1});
}

}  // namespace lockstep
