#pragma once
// A fleet that stands in front of another one, for whoever wants to change a part of it.

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/sync/fleet.h"

namespace lockstep {

/// Hands everything on to another fleet, which outlives it.
class ForwardingFleet : public Fleet {
 public:
  explicit ForwardingFleet(Fleet& fleet) : fleet_(fleet) {}

  int process() const override { return fleet_.process(); }
  int processes() const override { return fleet_.processes(); }
  const std::vector<std::string>& hosts() const override { return fleet_.hosts(); }
  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                const std::function<bool()>& stop) override {
    fleet_.exchange(channel, peers, out, in, stop);
  }
  std::vector<int> waiting_for() const override { return fleet_.waiting_for(); }
  std::chrono::steady_clock::duration silence_of(int process) const override {
    return fleet_.silence_of(process);
  }
  void say_last_words(const std::string& text) override { fleet_.say_last_words(text); }
  bool shows_error(const std::string& text) const override { return fleet_.shows_error(text); }
  void on_failure(std::function<std::string(const std::string&)> say) override {
    fleet_.on_failure(std::move(say));
  }
  void abort(int exit_code) override { fleet_.abort(exit_code); }

 private:
  Fleet& fleet_;
};

}  // namespace lockstep
