#pragma once
// Runs a test body that may hang when the code under test is wrong. A hang ends the process with a
// message, since a stuck thread can neither be stopped nor safely left behind.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <vector>

namespace lockstep::test {

/// Runs `body` on a thread of its own and rethrows what it throws.
inline void with_timeout(std::chrono::milliseconds limit, const std::function<void()>& body) {
  std::packaged_task<void()> task(body);
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(limit) != std::future_status::ready) {
    std::fprintf(stderr, "ERROR: the test hangs: not done within %lld ms\n",
                 static_cast<long long>(limit.count()));
    std::_Exit(1);
  }
  thread.join();
  done.get();
}

/// Runs `body(rank)` on one thread per rank, joins them all within `limit` and returns what each
/// threw.
inline std::vector<std::exception_ptr> run_ranks(
    int ranks, const std::function<void(int rank)>& body,
    std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  with_timeout(limit, [&] {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          thrown[rank] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  return thrown;
}

}  // namespace lockstep::test
