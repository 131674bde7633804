#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/terminal.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

/// A line on a "terminal" of 79 columns, with a clock that goes when it is told to.
class FakeTerminal {
 public:
  void wait(milliseconds time) { now_ += time; }
  void show(std::int64_t done, std::int64_t all = 100, const std::string& note = "") {
    line_.show({"evaluating", "images", done, all, note});
  }
  ProgressLine& line() { return line_; }
  /// What was written since the last call.
  std::string written() {
    std::string text;
    std::FILE* const file = file_.get();
    std::fseek(file, read_, SEEK_SET);
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
    read_ = std::ftell(file);
    return text;
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), std::fclose};
  long read_ = 0;
  ProgressLine::TimePoint now_{std::chrono::hours(1)};
  ProgressLine line_{file_.get(), [this] { return now_; }};
};

const std::string kErase = "\r\033[K";

TEST_CASE("progress: what, how far, how fast, how long still") {
  FakeTerminal terminal;
  terminal.show(0);
  CHECK(terminal.written() == kErase + "evaluating: 0/100 images");
  terminal.wait(milliseconds(500));
  terminal.show(5);
  CHECK(terminal.written() == kErase + "evaluating: 5/100 images");
  terminal.wait(milliseconds(1500));
  terminal.show(20);
  CHECK(terminal.written() == kErase + "evaluating: 20/100 images, 10.0 per s, 0:00:08 left");
  terminal.wait(milliseconds(8000));
  terminal.show(100, 100, "loss 0.5");
  CHECK(terminal.written() == kErase + "evaluating: 100/100 images, 10.0 per s, loss 0.5");
}

TEST_CASE("progress is written ten times a second at most, and at once when other work begins") {
  FakeTerminal terminal;
  terminal.show(0);
  terminal.written();
  for (int i = 1; i < 100; ++i) {
    terminal.wait(milliseconds(1));
    terminal.show(i);
  }
  CHECK(terminal.written().empty());
  terminal.wait(milliseconds(1));
  terminal.show(100);
  CHECK(terminal.written() == kErase + "evaluating: 100/100 images");
  terminal.line().show({"listing", "files", 3, 0});
  CHECK(terminal.written() == kErase + "listing: 3 files");
  terminal.show(1);
  CHECK(terminal.written() == kErase + "evaluating: 1/100 images");
}

TEST_CASE("work that goes on after other work has the rate of its own time") {
  FakeTerminal terminal;
  terminal.show(50);
  terminal.wait(milliseconds(2000));
  terminal.show(60);
  CHECK(terminal.written().ends_with("60/100 images, 5.0 per s, 0:00:08 left"));
}

TEST_CASE("the line goes away once, and comes back") {
  FakeTerminal terminal;
  terminal.line().clear();
  CHECK(terminal.written().empty());
  terminal.show(1);
  terminal.written();
  terminal.line().clear();
  CHECK(terminal.written() == kErase);
  terminal.line().clear();
  CHECK(terminal.written().empty());
  terminal.show(2);
  CHECK(terminal.written() == kErase + "evaluating: 2/100 images");
}

TEST_CASE("a line does not wrap") {
  FakeTerminal terminal;
  terminal.show(1, 100, std::string(200, 'x'));
  CHECK(terminal.written().size() == kErase.size() + 79);
}

}  // namespace
// As a library does that is loaded while a command runs: at the end of the process.
TEST_CASE("a stream of a command may be flushed when the command is over") {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "out";
  std::fflush(stdout);
  const int own = dup(STDOUT_FILENO), to = open(file.c_str(), O_CREAT | O_WRONLY, 0600);
  dup2(to, STDOUT_FILENO);
  std::FILE* remembered = nullptr;
  {
    const PrintedOutput output;
    remembered = stdout;
    std::fputs("while it runs", stdout);
  }
  CHECK(stdout != remembered);
  std::vector<std::string> others;  // memory that was given back would be theirs
  for (std::size_t bytes = 16; bytes < 16384; bytes += 8) others.emplace_back(bytes, 'x');
  std::fputs(", and behind it", remembered);
  CHECK(std::fflush(remembered) == 0);
  dup2(own, STDOUT_FILENO);
  close(own);
  close(to);
  CHECK(test::read_text(file) == "while it runs, and behind it");
}

}  // namespace lockstep
