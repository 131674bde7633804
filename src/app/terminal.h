#pragma once
// The terminal that a command is started from: how far it is, whether what it prints arrives, and
// what its keys ask for.

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "lockstep/core/progress.h"

namespace lockstep {

/// "evaluating: 12/367 images, 25.1 per s, 0:00:14 left", written over itself ten times a second at
/// most and as long as the terminal is wide. Used by one thread at a time.
class ProgressLine final : public ProgressObserver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Clock = std::function<TimePoint()>;

  explicit ProgressLine(std::FILE* terminal, Clock clock = std::chrono::steady_clock::now);
  ~ProgressLine() override { clear(); }

  void show(const WorkProgress& progress) override;
  void clear() override;

 private:
  std::string line_of(const WorkProgress& progress, TimePoint now) const;

  std::FILE* const terminal_;
  const Clock clock_;
  std::string what_;         // the work that is shown
  TimePoint begun_, drawn_;  // when it was first told of; when the line was last written
  std::int64_t first_ = 0;   // what was done by then
  std::int64_t done_ = 0;
  bool visible_ = false;
};

/// Shows the process's progress on stderr, where that is a terminal, as long as it lives.
class ShownProgress {
 public:
  ShownProgress();
  ~ShownProgress();
  ShownProgress(const ShownProgress&) = delete;
  ShownProgress& operator=(const ShownProgress&) = delete;

 private:
  ProgressLine line_;
  const bool shown_;
  ProgressObserver* before_ = nullptr;
};

/// /dev/null in place of a standard stream that is closed (`>&-`): else the next file that is
/// opened takes its number, and what is printed is written to it. Before a file is opened.
void open_standard_streams();

/// stdout and stderr as long as a command runs: printing never fails, so a full disk behind `> log`
/// does not end a training. One at a time per process, before and after anything prints.
class PrintedOutput {
 public:
  PrintedOutput();
  ~PrintedOutput();
  PrintedOutput(const PrintedOutput&) = delete;
  PrintedOutput& operator=(const PrintedOutput&) = delete;

  /// Hands over what is still buffered, and returns `exit_code`. Where something could not be
  /// written, a line on stderr says so, and kExitFailure takes the place of kExitDone. A reader
  /// that has gone (`| head -1`) wanted no more: no failure.
  int finish(int exit_code);

 private:
  /// A stream in place of `stream`, which it gives back.
  class Stream {
   public:
    Stream(std::FILE*& stream, int descriptor, int buffering);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// The errno of the first write that failed; 0: none, or the reader has gone.
    int failure();

   private:
    /// What the stream writes to.
    struct Sink {
      const int descriptor;
      std::atomic<int> failure{0};
      static ssize_t write(void* self, const char* bytes, std::size_t count);
    };

    std::FILE*& stream_;
    std::FILE* const before_;
    Sink& sink_;  // never freed, as the stream
  };

  using Handler = void (*)(int);
  const Handler file_too_large_;  // SIGXFSZ's: a limit of file sizes is an error of the write
  Stream out_, err_;
};

/// Ctrl-C: the first SIGINT or SIGTERM, and SIGUSR1 and SIGHUP, ask for a stop at the end of the
/// step, of which the first says so on stderr; the second SIGINT or SIGTERM ends the process at
/// once. Handles SIGINT, SIGTERM, SIGUSR1, which launchers of several processes hand on (mpirun and
/// srun do, and of the others kill after a second), and SIGHUP, of a terminal that is gone (under
/// nohup it stays ignored), for as long as it lives. Who reads the output may end meanwhile: a
/// training goes on without SIGPIPE. One at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// True once a stop was asked for; to be given to TrainRequest::stop.
  const std::atomic<bool>& requested() const;

 private:
  using Handler = void (*)(int);
  Handler hang_up_, broken_pipe_;  // what was there before
};

}  // namespace lockstep
