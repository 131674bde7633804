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

namespace lockstep {

/// Safe from any thread. Process 0 says at once on stderr what it hears of a failure. Another
/// process, whose threads do not come to say so (a call of MPI need not return then), says it after
/// a fifth of a second; either ends then after ten.
class FailureDetector {
 public:
  /// Connects; all processes call it. Throws Error when process 0 cannot be reached.
  explicit FailureDetector(World& world);
  FailureDetector(const FailureDetector&) = delete;
  FailureDetector& operator=(const FailureDetector&) = delete;
  /// Says that this process is done.
  ~FailureDetector();

  /// Why another process has ended, as soon as it has.
  std::optional<std::string> failure() const;
  bool failed() const { return failed_; }
  /// Of this process, to all others, unless it has heard some: then it is they that count. Returns
  /// when the others have had time to write down why they end, and the first to fail has ended.
  void announce(const std::string& text);
  /// As World::silence_of: of this process none.
  std::chrono::steady_clock::duration silence_of(int process) const;
  /// As World::on_failure.
  void on_failure(std::function<std::string(const std::string& heard)> say);

 private:
  using Clock = std::chrono::steady_clock;

  struct Line {
    int process = 0;
    int socket = -1;
    std::string heard;
    bool done = false;  // it has said so, or this process has seen its end
  };

  void accept_all(int listener, std::uint64_t token);
  void connect_to_first(const std::string& addresses);
  void listen();
  void hear(Line& line);
  void take(Line& line, char kind, const std::string& text);
  void say_alive();
  void note_alive(const Line& line, const std::string& silences);
  void note(const std::string& text, int from);
  void speak_for_stuck_threads(Clock::time_point heard);
  void speak();
  static void send(const Line& line, char kind, const std::string& text);
  void send_all(char kind, const std::string& text, int but);
  static void wait_for_end(Line& line, Clock::time_point until);
  std::string name(int process) const;

  const int process_;
  const std::vector<std::string> hosts_;
  std::vector<Line> lines_;
  std::vector<std::atomic<Clock::rep>> heard_at_;  // [process] when it last ran, for all one knows
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_
  std::atomic<int> heard_from_{-1};
  std::atomic<bool> failed_{false}, leaving_{false};
  mutable std::atomic<bool> told_{false};  // the failure, to a thread that ends the process
  std::atomic<bool> spoken_{false};        // stderr has it
  std::string said_;                       // what it is to have; of the listener
  std::mutex say_mutex_;                   // held while say_ runs
  std::function<std::string(const std::string&)> say_;  // guarded by say_mutex_; or null
  int wake_[2] = {-1, -1};                              // a pipe: ends the listener
  std::thread listener_;
};

}  // namespace lockstep
