#pragma once
// Trainings of several processes (threads here), and what they come to.

#include <doctest/doctest.h>

#include <functional>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "support/thread_world.h"
#include "support/with_timeout.h"

namespace lockstep::test {

constexpr std::chrono::seconds kLong{120};

/// Of a process with so many devices, whose first rank is `first`.
using ProcessOptions = std::function<DataParallelOptions(int devices, int first)>;

/// work(run) in each process; so many devices each.
inline void with_processes(const std::vector<int>& devices, const ProcessOptions& make,
                           const std::function<void(DataParallel& run)>& work) {
  with_timeout(kLong, [&] {
    run_world(static_cast<int>(devices.size()), [&](World& world) {
      const auto own = devices.begin() + world.process();
      DataParallelOptions options = make(*own, std::accumulate(devices.begin(), own, 0));
      options.communicator.world = world;
      DataParallel run(std::move(options));
      work(run);
    });
  });
}

/// What process 0 has come to, after a look whether all processes have come to the same.
template <typename Result>
Result one_of_all(const std::vector<int>& devices, const ProcessOptions& make,
                  const std::function<Result(DataParallel& run)>& work) {
  std::mutex mutex;
  std::vector<Result> results;
  with_processes(devices, make, [&](DataParallel& run) {
    Result result = work(run);
    const std::lock_guard lock(mutex);
    results.push_back(std::move(result));
  });
  REQUIRE(results.size() == devices.size());
  for (const Result& result : results) CHECK((result == results.front()));
  return results.front();
}

}  // namespace lockstep::test
