#pragma once
// The running statistics of a rank as they were before its last steps, for a step whose loss turns
// out not to be finite: by then the forward pass has changed them.

#include <array>
#include <vector>

#include "lockstep/nn/parameter_store.h"
#include "step/step.h"

namespace lockstep {

/// Used by its rank's thread. On a GPU its copies are issued like a step's other operations.
class StatisticsBackup {
 public:
  /// Both outlive the object; the store is allocated.
  StatisticsBackup(const ParameterStore& store, Backend& backend);

  /// Called before a step begins. `slot`: StepInput::slot.
  void save(int slot);
  /// Puts back what that step began with, whatever later ones have done.
  void restore(int slot);

 private:
  struct Copy {
    Storage statistics;
    std::vector<std::int64_t> tracked;  // [layer]
  };
  /// Null where no layer has statistics.
  Tensor of(void* data) const;

  const ParameterStore& store_;
  Backend& backend_;
  std::array<Copy, kStepSlots> copies_;
};

}  // namespace lockstep
