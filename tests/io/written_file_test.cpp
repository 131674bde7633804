#include "io/written_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "io/atomic_file.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

namespace fs = std::filesystem;
using Mode = WrittenFile::Mode;

TEST_CASE("a file is written from its beginning, or on from its end") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  for (const Mode mode : {Mode::kReplace, Mode::kAppend, Mode::kAppend}) {
    WrittenFile file(path, mode);
    file.write("a line\n");
    file.close();
  }
  CHECK(read_text(path) == "a line\na line\na line\n");
  WrittenFile(path, Mode::kReplace).write("new");
  CHECK(read_text(path) == "new");
}

TEST_CASE("what the system says of a file that cannot be written is told") {
  const TemporaryFolder folder;
  const fs::path nowhere = folder.path() / "not" / "there";
  CHECK_THROWS_WITH_AS(WrittenFile(nowhere, Mode::kAppend),
                       ("cannot open " + nowhere.string() + ": No such file or directory").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(WrittenFile(folder.path(), Mode::kReplace),
                       doctest::Contains("Is a directory"), Error);
  if (!fs::exists("/dev/full")) return;
  WrittenFile full("/dev/full", Mode::kAppend);
  CHECK_THROWS_WITH_AS(full.write("a"), "cannot write /dev/full: No space left on device", Error);
}

TEST_CASE("a file that cannot be replaced is named with the reason, and stays") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "kept";
  fs::create_directories(path / "with a file");
  CHECK_THROWS_WITH_AS(write_file_atomically(path, "new"),
                       doctest::Contains(("cannot save " + path.string() + ": ").c_str()), Error);
  CHECK(fs::exists(path / "with a file"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("what the system says of a file that cannot be read is told") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(FileBytes(folder.path() / "none"),
                       "it cannot be read: No such file or directory", DataError);
  CHECK_THROWS_WITH_AS(FileBytes(folder.path()), doctest::Contains("it is a folder"), DataError);
}

}  // namespace lockstep::test
