#pragma once
// The program as a user runs it: a process with arguments, its output and exit code.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"

namespace lockstep::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out, err;
};

/// A running lockstep. Killed and reaped when destroyed.
class Process {
 public:
  /// `out`: what stdout is; empty: a file that wait() reads.
  Process(const std::vector<std::string>& arguments, const std::string& fault = "",
          const std::filesystem::path& out = {}) {
    std::fflush(nullptr);  // or the child would write this process's buffers again
    pid_ = fork();
    if (pid_ != 0) return;
    redirect(out.empty() ? folder_.path() / "out" : out, stdout);
    redirect(folder_.path() / "err", stderr);
    if (!fault.empty()) setenv("LOCKSTEP_FAULT", fault.c_str(), 1);
    std::vector<char*> argv{const_cast<char*>("lockstep")};
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(LOCKSTEP_BINARY, argv.data());
    _exit(127);
  }
  ~Process() {
    if (reaped_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { kill(pid_, signal); }

  /// Waits until stdout contains `text` or the process has ended; false in the latter case.
  bool wait_for(const std::string& text) {
    while (read_text(folder_.path() / "out").find(text) == std::string::npos) {
      if (waitpid(pid_, &status_, WNOHANG) == pid_) {
        reaped_ = true;
        return read_text(folder_.path() / "out").find(text) != std::string::npos;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  Outcome wait() {
    if (!reaped_) waitpid(pid_, &status_, 0);
    reaped_ = true;
    const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    return {code, read_text(folder_.path() / "out"), read_text(folder_.path() / "err")};
  }

 private:
  static void redirect(const std::filesystem::path& file, std::FILE* stream) {
    if (std::freopen(file.c_str(), "w", stream) == nullptr) _exit(126);
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
};

inline Outcome run_lockstep(const std::vector<std::string>& arguments,
                            const std::string& fault = "") {
  return Process(arguments, fault).wait();
}

}  // namespace lockstep::test
