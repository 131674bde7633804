#pragma once
// Independent pieces of work on several host threads.

#include <atomic>
#include <cstdint>
#include <functional>

namespace lockstep {

/// Calls work(index, thread) for all indices below `count`, begun in their order, on `threads`
/// threads (at least 1): the caller's, which is thread 0, and others. The first exception ends it
/// and is thrown; `stop` (may be null) ends it after the pieces at work.
void for_each_index(std::int64_t count, int threads,
                    const std::function<void(std::int64_t index, int thread)>& work,
                    const std::atomic<bool>* stop = nullptr);

}  // namespace lockstep
