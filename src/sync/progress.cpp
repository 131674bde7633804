#include <string_view>

#include "lockstep/core/check.h"
#include "lockstep/sync/barrier.h"
#include "lockstep/sync/threading.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             threading::Clock::now().time_since_epoch())
      .count();
}

}  // namespace

Progress::Progress(int ranks, int first)
    : ranks_(ranks), first_(first), entries_(std::make_unique<Entry[]>(ranks)) {
  for (int i = 0; i < ranks; ++i) entries_[i].since_ns = now_ns();
}

void Progress::enter(int rank, const char* activity, const char* place) {
  Entry& own = entry(rank);
  own.activity.store(activity, std::memory_order_relaxed);
  own.place.store(place, std::memory_order_relaxed);
  own.since_ns.store(now_ns(), std::memory_order_relaxed);
}

void Progress::set_step(int rank, std::int64_t step) {
  entry(rank).step.store(step, std::memory_order_relaxed);
}

std::string Progress::describe(int rank) const {
  const Entry& of = entry(rank);
  const std::string_view place = of.place.load(std::memory_order_relaxed);
  const std::int64_t step = of.step.load(std::memory_order_relaxed);
  const std::int64_t since = of.since_ns.load(std::memory_order_relaxed);
  std::string text = concat("replica ", rank, ": ", of.activity.load(std::memory_order_relaxed));
  if (!place.empty()) text += concat(" in ", place);
  if (step >= 0) text += concat(", step ", step);
  return text + ", for " + describe_seconds(static_cast<double>(now_ns() - since) * 1e-9);
}

}  // namespace lockstep
