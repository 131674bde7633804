#pragma once
// A socket between process 0 and every other one, on which a process says that it runs, and one
// that ends why. One that ends without a word is noticed by the end of its stream, one whose cable
// is cut by TCP, and one that is stopped by its silence.

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/sync/world.h"
#include "sync/greeting.h"

namespace lockstep {

/// Safe from any thread. Process 0 says at once on stderr what it hears of a failure. Another
/// process, none of whose threads comes to say so (a call of MPI need not return then), says it
/// after a fifth of a second; either ends then after ten.
class FailureDetector {
 public:
  /// Connects; all processes of `carrier` call it. Throws Error when process 0 cannot be reached.
  explicit FailureDetector(World& carrier);
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;
  /// Says that this process is done.
  ~FailureDetector();

  /// Why another process has ended, as soon as it has.
  std::optional<std::string> failure() const;
  bool failed() const { return failed_; }
  /// Tells all others why this process ends, unless it has heard of a failure: then that counts.
  /// Returns when the others have had time to write down why they end, and the first to fail has
  /// ended.
  void announce(const std::string& reason);
  /// As World::silence_of: of this process none.
  std::chrono::steady_clock::duration silence_of(int process) const;
  /// As World::on_failure.
  void on_failure(std::function<std::string(const std::string& heard)> explain);

 private:
  using Clock = std::chrono::steady_clock;

  struct Line {
    int process = 0;
    int socket = -1;
    std::string heard;  // the beginning of a message
    bool done = false;  // it has said so, or this process has seen its end
  };

  void connect_all(World& carrier);
  void connect_to_first(const std::string& told);
  void accept_all(int listener, const Passwords& passwords);
  void listen();
  void hear(Line& line);
  void take(Line& line, const std::string& message);
  void say_alive();
  void note(const std::string& reason, int from);
  void speak_for_stuck_threads(Clock::duration since_heard);
  void speak();
  void send_all(const std::string& message, int but = -1) const;
  void end_listener();
  std::string name(int process) const;

  const int process_;
  const std::vector<std::string> hosts_;
  std::vector<Line> lines_;
  std::vector<std::atomic<Clock::rep>> heard_at_;  // [process] when it last ran, for all one knows
  mutable std::mutex mutex_;
  std::string failure_;                                               // guarded by mutex_
  std::atomic<int> heard_from_{-1};                                   // who told of the failure
  std::atomic<bool> failed_{false}, leaving_{false}, spoken_{false};  // spoken: stderr has it
  mutable std::atomic<bool> told_{false};  // the failure, to a thread that ends the process
  std::string explained_;                  // what stderr is to have; of the listener
  std::mutex explain_mutex_;               // held while explain_ runs
  std::function<std::string(const std::string&)> explain_;  // or null
  int wake_[2] = {-1, -1};                                  // a pipe: ends the listener
  std::thread listener_;
};

}  // namespace lockstep
