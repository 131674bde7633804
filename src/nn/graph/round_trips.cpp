#include "nn/graph/round_trips.h"

#include <utility>

namespace lockstep {

RoundTrips::RoundTrips(const MemoryPlan& plan, std::unique_ptr<Offload> offload)
    : under_way_(plan.round_trips.size()), offload_(std::move(offload)) {
  const auto at = [this](int step) -> AtStep& {
    const auto index = static_cast<std::size_t>(step);
    if (steps_.size() <= index) steps_.resize(index + 1);
    return steps_[index];
  };
  for (int i = 0; const RoundTrip& trip : plan.round_trips) {
    const Buffer& buffer = plan.buffers[trip.buffer];
    at(trip.last_use).sent.push_back(i);
    at(buffer.away_first).gone.push_back(i);
    at(buffer.away_last + 1).fetched.push_back(i);
    at(trip.next_use).needed.push_back(i);
    ++i;
  }
}

void RoundTrips::begin() {
  for (std::size_t i = 0; i < under_way_.size(); ++i) {
    if (under_way_[i]) wait(static_cast<int>(i));
  }
}

void RoundTrips::before(int step) {
  const auto index = static_cast<std::size_t>(step);
  if (index >= steps_.size()) return;
  for (const int trip : steps_[index].gone) wait(trip);
  for (const int trip : steps_[index].fetched) {
    offload_->fetch(trip);
    under_way_[static_cast<std::size_t>(trip)] = true;
  }
  for (const int trip : steps_[index].needed) wait(trip);
}

void RoundTrips::after(int step) {
  const auto index = static_cast<std::size_t>(step);
  if (index >= steps_.size()) return;
  for (const int trip : steps_[index].sent) {
    offload_->send(trip);
    under_way_[static_cast<std::size_t>(trip)] = true;
  }
}

void RoundTrips::wait(int trip) {
  offload_->wait(trip);
  under_way_[static_cast<std::size_t>(trip)] = false;
}

}  // namespace lockstep
