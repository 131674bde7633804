#include "lockstep/sync/abortable_barrier.h"

#include "lockstep/core/check.h"
#include "lockstep/sync/describe.h"

namespace lockstep {

AbortableBarrier::AbortableBarrier(int parties)
    : parties_(parties), here_(static_cast<std::size_t>(parties)) {
  LOCKSTEP_CHECK(parties > 0, "a barrier needs at least one party, got ", parties);
}

void AbortableBarrier::arrive_and_wait(int rank) {
  std::unique_lock lock(mutex_);
  if (failure_) throw_aborted(rank);
  LOCKSTEP_CHECK(rank >= 0 && rank < parties_ && !here_[rank], "replica ", rank,
                 " arrives twice, or is not one of the ", parties_, " of this barrier");
  if (arrived_ == 0) oldest_ = std::chrono::steady_clock::now();
  here_[rank] = true;
  if (++arrived_ == parties_) {
    arrived_ = 0;
    here_.assign(here_.size(), false);
    ++generation_;
    lock.unlock();
    changed_.notify_all();
    return;
  }
  const std::uint64_t mine = generation_;
  changed_.wait(lock, [&] { return generation_ != mine || failure_; });
  if (failure_) throw_aborted(rank);
}

void AbortableBarrier::abort(std::exception_ptr cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(cause);
  }
  changed_.notify_all();
}

std::optional<AbortableBarrier::Wait> AbortableBarrier::waiting() const {
  const std::lock_guard lock(mutex_);
  if (arrived_ == 0 || failure_) return std::nullopt;
  Wait wait{std::chrono::steady_clock::now() - oldest_, {}, {}};
  for (int rank = 0; rank < parties_; ++rank) {
    (here_[rank] ? wait.waiting : wait.missing).push_back(rank);
  }
  return wait;
}

void AbortableBarrier::throw_aborted(int rank) const {
  throw PeerAborted(
      concat("replica ", rank, " leaves the barrier, because of: ", describe(failure_)));
}

}  // namespace lockstep
