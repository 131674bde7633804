#include "lockstep/sync/progress.h"

#include <string_view>

#include "lockstep/core/check.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Progress::Progress(int ranks) : ranks_(ranks), entries_(std::make_unique<Entry[]>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) entries_[rank].since_ns = now_ns();
}

void Progress::enter(int rank, const char* activity, const char* place) {
  Entry& entry = entries_[rank];
  entry.activity.store(activity, std::memory_order_relaxed);
  entry.place.store(place, std::memory_order_relaxed);
  entry.since_ns.store(now_ns(), std::memory_order_relaxed);
}

void Progress::set_step(int rank, std::int64_t step) {
  entries_[rank].step.store(step, std::memory_order_relaxed);
}

std::string Progress::describe(int rank) const {
  const Entry& entry = entries_[rank];
  const std::string_view place = entry.place.load(std::memory_order_relaxed);
  const std::int64_t step = entry.step.load(std::memory_order_relaxed);
  const std::int64_t since = entry.since_ns.load(std::memory_order_relaxed);
  std::string text = concat("replica ", rank, ": ", entry.activity.load(std::memory_order_relaxed));
  if (!place.empty()) text += concat(" in ", place);
  if (step >= 0) text += concat(", step ", step);
  return text + ", for " + describe_seconds(static_cast<double>(now_ns() - since) * 1e-9);
}

}  // namespace lockstep
