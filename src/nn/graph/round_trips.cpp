#include "nn/graph/round_trips.h"

namespace lockstep {

RoundTrips::RoundTrips(Backend& backend, const PlannedMemory& memory) {
  const MemoryPlan& plan = memory.plan();
  if (plan.round_trips.empty()) return;
  std::vector<Tensor> tensors;
  const auto at = [this](int step) -> AtStep& {
    const auto index = static_cast<std::size_t>(step);
    if (steps_.size() <= index) steps_.resize(index + 1);
    return steps_[index];
  };
  for (int i = 0; const RoundTrip& trip : plan.round_trips) {
    const Buffer& buffer = plan.buffers[trip.buffer];
    tensors.push_back(memory.bytes_of(trip.buffer));
    at(trip.last_use).sent.push_back(i);
    at(buffer.away_first).gone.push_back(i);
    at(buffer.away_last + 1).fetched.push_back(i);
    at(trip.next_use).needed.push_back(i);
    ++i;
  }
  under_way_.resize(tensors.size());
  offload_ = backend.make_offload(tensors);
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
