#pragma once
// Threads, where the system may have none left.

#include <system_error>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {

/// A std::thread or std::jthread that runs `work`. Throws Error, which says what to do, where there
/// is none to be had. `purpose`: "to decode images".
template <typename Thread, typename... Work>
Thread start_thread(const char* purpose, Work&&... work) {
  try {
    return Thread(std::forward<Work>(work)...);
  } catch (const std::system_error& error) {
    throw Error(concat("no thread is left ", purpose, ": ", error.code().message(),
                       "; use fewer devices or data.workers, or allow more (ulimit -u, pids.max)"));
  }
}

}  // namespace lockstep
