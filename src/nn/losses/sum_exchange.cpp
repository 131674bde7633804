#include "nn/losses/sum_exchange.h"

namespace lockstep {

SumExchange::SumExchange(const LossSite& site, std::size_t slot_floats)
    : place_(concat("the loss at ", site.output)),
      index_(site.index),
      slot_floats_(slot_floats),
      slots_(site.network.backend().allocate(2 * slot_floats * sizeof(float))) {}

float* SumExchange::next_slot() {
  turn_ = !turn_;
  return static_cast<float*>(slots_.data()) + (turn_ ? slot_floats_ : 0);
}

std::span<const StatSlot> SumExchange::all(Communicator* communicator, const StatSlot& local,
                                           std::int64_t elements) {
  own_ = local;
  if (communicator == nullptr || communicator->size() == 1) return {&own_, 1};
  return communicator->all_show({place_.c_str(), Direction::kForward, index_, elements}, local);
}

}  // namespace lockstep
