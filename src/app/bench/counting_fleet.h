#pragma once
// A fleet that counts what it carries.

#include <atomic>
#include <cstdint>

#include "sync/forwarding_fleet.h"

namespace lockstep {

/// Of another fleet, which outlives it.
class CountingFleet final : public ForwardingFleet {
 public:
  using ForwardingFleet::ForwardingFleet;

  /// What this process has given to the others so far.
  std::int64_t bytes_given() const { return bytes_given_; }

  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                const std::function<bool()>& stop) override {
    for (const int peer : peers) {
      bytes_given_ += static_cast<std::int64_t>(out[static_cast<std::size_t>(peer)].size());
    }
    ForwardingFleet::exchange(channel, peers, out, in, stop);
  }

 private:
  std::atomic<std::int64_t> bytes_given_{0};
};

}  // namespace lockstep
