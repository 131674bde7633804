#include "core/for_each_index.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/start_thread.h"

namespace lockstep {

void for_each_index(std::int64_t count, int threads,
                    const std::function<void(std::int64_t index, int thread)>& work,
                    const std::atomic<bool>* stop) {
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // the first; guarded by mutex
  const auto run = [&](int thread) {
    try {
      while (stop == nullptr || !*stop) {
        const std::int64_t index = next++;
        if (index >= count) return;
        work(index, thread);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads && i < count; ++i)
      others.push_back(start_thread<std::jthread>("to share work", run, i));
    run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace lockstep
