#pragma once
// Faults on purpose, for tests and demonstrations (docs/understand/testing.md): a replica that
// throws, sleeps, leaves an exchange out, all of them delayed at random, or an evaluation that is
// cut off. Comes from the
// environment variable LOCKSTEP_FAULT.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/sync/communicator.h"

namespace lockstep {

/// One fault, as text: "throw:rank=1,step=3", "sleep:rank=2,step=3,seconds=100",
/// "skip:rank=1,step=3,call=5", "delay:seed=7,max_us=2000". Steps count from 0 over the whole run.
/// `call` counts a rank's exchanges and barriers within the step, in its own order, from 0 (the
/// default). "evaluation:step=10": that after ten steps.
class FaultInjection {
 public:
  /// "" injects nothing. Throws ConfigError for a fault that does not exist.
  explicit FaultInjection(const std::string& text);

  bool active() const { return shared_ != nullptr; }
  /// The step that starts now. Call from the trainer's thread, between steps.
  void set_step(std::int64_t step);
  /// Throws Error where the evaluation after so many steps is to fail. Nothing is written from its
  /// beginning on, as where a process is killed.
  void strike_evaluation(std::int64_t steps) const;
  /// For SyncGroupOptions::hook; null when inactive. May outlive this object.
  std::function<bool(int rank, const SyncCall& call)> hook() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace lockstep
