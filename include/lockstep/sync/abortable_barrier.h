#pragma once
// A reusable barrier that can be aborted. Waits are on (generation, failure), never on a bare
// count, so a fast thread that comes round again cannot be mistaken for a late one.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <vector>

namespace lockstep {

/// Safe from any thread; each of the `parties` ranks arrives once per generation.
class AbortableBarrier {
 public:
  explicit AbortableBarrier(int parties);

  /// Waits for all parties. Throws PeerAborted after `abort`.
  void arrive_and_wait(int rank);
  /// Wakes everyone, now and for ever; the first cause is kept.
  void abort(std::exception_ptr cause);

  /// Longest present wait and the ranks not yet there; nullopt when nobody waits.
  struct Wait {
    std::chrono::steady_clock::duration longest;
    std::vector<int> waiting;
    std::vector<int> missing;
  };
  std::optional<Wait> waiting() const;

 private:
  [[noreturn]] void throw_aborted(int rank) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  const int parties_;
  int arrived_ = 0;
  std::uint64_t generation_ = 0;
  std::exception_ptr failure_;
  std::vector<bool> here_;  // [rank]
  std::chrono::steady_clock::time_point oldest_;
};

}  // namespace lockstep
