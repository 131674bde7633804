#pragma once
// How the processes of a run find one another at a port that anybody may connect to: a port scan, a
// program that has the wrong address. Strangers are heard side by side with the processes, each for
// a moment and a few bytes, and keep nobody waiting.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// What only processes of this run know: they say `question` first, and process 0 answers.
struct Passwords {
  std::uint64_t question = 0, answer = 0;
};

/// New ones. Throws Error.
Passwords draw_passwords();

/// [process] its socket; -1: it has not come, and for process 0, which calls this. Waits for
/// `patience` for each that comes next. `listener`: a socket that listens.
std::vector<int> accept_processes(int listener, int processes, const Passwords& passwords,
                                  std::chrono::milliseconds patience);

/// A socket to process 0, which listens at one of the `addresses`; -1 where none of them answers as
/// it does. Tries them side by side.
int reach_first(const std::vector<std::string>& addresses, int port, int process,
                const Passwords& passwords, std::chrono::milliseconds patience);

}  // namespace lockstep
