#include "lockstep/core/progress.h"

#include <mutex>
#include <utility>

namespace lockstep {
namespace {

std::mutex telling;
std::atomic<ProgressObserver*> observer_of_process{nullptr};

template <typename Tell>
void tell(const Tell& tell_it) {
  if (observer_of_process.load(std::memory_order_relaxed) == nullptr) return;
  const std::lock_guard lock(telling);
  if (ProgressObserver* const observer = observer_of_process.load()) tell_it(*observer);
}

}  // namespace

ProgressObserver* set_progress_observer(ProgressObserver* observer) {
  const std::lock_guard lock(telling);
  return observer_of_process.exchange(observer);
}

void show_progress(const WorkProgress& progress) {
  tell([&](ProgressObserver& observer) { observer.show(progress); });
}

void clear_progress() {
  tell([](ProgressObserver& observer) { observer.clear(); });
}

LongWork::LongWork(std::string what, std::string unit, std::int64_t all)
    : what_(std::move(what)), unit_(std::move(unit)), all_(all) {
  show_progress({what_, unit_, 0, all_});
}

// Counted under the observer's lock, so that what it sees never goes back.
void LongWork::advance(std::int64_t parts) {
  tell([&](ProgressObserver& observer) { observer.show({what_, unit_, done_ += parts, all_}); });
}

}  // namespace lockstep
