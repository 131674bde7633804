#include "io/written_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "io/atomic_file.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

namespace fs = std::filesystem;
using Mode = WrittenFile::Mode;

namespace {

void write_new(const fs::path& path, const std::string& text = "new", Mode mode = Mode::kReplace) {
  WrittenFile file(path, mode);
  file.write(text);
  file.close();
}

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), {});
}

}  // namespace

TEST_CASE("a file is written from its beginning, or on from its end") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  for (const Mode mode : {Mode::kReplace, Mode::kAppend, Mode::kAppend}) {
    WrittenFile file(path, mode);
    file.write("a line\n");
    file.close();
  }
  CHECK(read_text(path) == "a line\na line\na line\n");
  write_new(path);
  CHECK(read_text(path) == "new");
}

TEST_CASE("what is not closed leaves the file that was there, and nothing else") {
  const TemporaryFolder folder;
  const fs::path path = folder.write("a", "old");
  WrittenFile(path, Mode::kReplace).write("new");
  CHECK(read_text(path) == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("the longest name that a file can have is written") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / std::string(255, 'a');
  write_new(path);
  CHECK(read_text(path) == "new");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a file that is replaced keeps its permissions") {
  const TemporaryFolder folder;
  const fs::path path = folder.write("a", "old");
  fs::permissions(path, fs::perms::owner_all);
  write_new(path);
  CHECK(fs::status(path).permissions() == fs::perms::owner_all);
}

TEST_CASE("links stay, and what they lead to is written") {
  const TemporaryFolder folder;
  const fs::path target = folder.write("target", "old"), link = folder.path() / "link";
  fs::create_directory(folder.path() / "below");
  const fs::path far = folder.path() / "below" / "link";
  fs::create_symlink("target", link);
  fs::create_symlink("../link", far);
  for (const fs::path& path : {link, far}) {
    for (const Mode mode : {Mode::kReplace, Mode::kAppend}) {
      CAPTURE(path);
      write_new(target, "old");
      write_new(path, "new", mode);
      CHECK(fs::is_symlink(path));
      CHECK(fs::is_regular_file(fs::symlink_status(target)));
      CHECK(read_text(target) == (mode == Mode::kReplace ? "new" : "oldnew"));
    }
  }
  CHECK(files_in(folder.path()) == 3);
}

TEST_CASE("a link to what is not there makes that; one that leads to itself is an error") {
  const TemporaryFolder folder;
  const fs::path link = folder.path() / "link", loop = folder.path() / "loop";
  fs::create_symlink("target", link);
  write_new(link);
  CHECK(fs::is_symlink(link));
  CHECK(read_text(folder.path() / "target") == "new");
  fs::create_symlink("loop", loop);
  CHECK_THROWS_WITH_AS(write_new(loop), doctest::Contains("symbolic links"), Error);
  CHECK(fs::is_symlink(loop));
}

TEST_CASE("what is appended to a file that was removed is an error") {
  const TemporaryFolder folder;
  const fs::path path = folder.write("a", "old");
  WrittenFile file(path, Mode::kAppend);
  file.write("new");
  CHECK(read_text(path) == "oldnew");
  fs::remove(path);
  CHECK_THROWS_WITH_AS(file.write("more"), doctest::Contains("No such file"), Error);
}

TEST_CASE("a pipe is written through, and stays") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe", link = folder.path() / "link";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, link);
  const int reader =
      ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);  // no writer waits for it
  REQUIRE(reader >= 0);
  for (const fs::path& path : {pipe, link}) {
    write_file_atomically(path, "new");
    std::string text(8, '\0');
    const ssize_t got = ::read(reader, text.data(), text.size());
    CHECK(text.substr(0, static_cast<std::size_t>(std::max<ssize_t>(got, 0))) == "new");
  }
  ::close(reader);
  CHECK(fs::is_fifo(fs::symlink_status(pipe)));
  CHECK(fs::is_symlink(link));
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("a device is written through, and stays") {
  const TemporaryFolder folder;
  const fs::path null = folder.path() / "null", full = folder.path() / "full";
  const auto make = [](const fs::path& path, unsigned minor) {
    return mknod(path.c_str(), S_IFCHR | 0666, makedev(1, minor)) == 0 &&
           WrittenFile(path, Mode::kAppend).path() == path;
  };
  bool made = false;
  try {
    made = make(null, 3) && make(full, 7);
  } catch (const Error&) {  // on a file system for which devices are none
  }
  if (!made) {
    MESSAGE("SKIPPED: no device can be made here");
    return;
  }
  write_file_atomically(null, "new");
  CHECK_THROWS_WITH_AS(write_file_atomically(full, "new"), doctest::Contains("No space left"),
                       Error);
  for (const fs::path& path : {null, full}) CHECK(fs::is_character_file(fs::symlink_status(path)));
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("a descriptor of this process is written on from where it stands") {
  const TemporaryFolder folder;
  const fs::path path = folder.write("a", "");
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(descriptor >= 0);
  REQUIRE(::write(descriptor, "before ", 7) == 7);
  const fs::path link = folder.path() / "link";
  fs::create_symlink(concat("/proc/self/fd/", descriptor), link);
  for (const std::string& name :
       {concat("/proc/self/fd/", descriptor), concat("/dev/fd/", descriptor), link.string()}) {
    write_file_atomically(name, "new ");
  }
  REQUIRE(::write(descriptor, "after", 5) == 5);
  ::close(descriptor);
  CHECK(read_text(path) == "before new new new after");
}

TEST_CASE("what the system says of a file that cannot be written is told") {
  const TemporaryFolder folder;
  const fs::path nowhere = folder.path() / "not" / "there";
  CHECK_THROWS_WITH_AS(WrittenFile(nowhere, Mode::kAppend),
                       ("cannot open " + nowhere.string() + ": No such file or directory").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(WrittenFile(folder.path(), Mode::kReplace),
                       doctest::Contains("Is a directory"), Error);
  CHECK(fs::is_empty(folder.path()));
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
  CHECK_THROWS_WITH_AS(FileBytes(folder.path() / "none", "it"),
                       "it cannot be read: No such file or directory", DataError);
  CHECK_THROWS_WITH_AS(FileBytes(folder.path()), doctest::Contains("it is a folder"), DataError);
}

}  // namespace lockstep::test
