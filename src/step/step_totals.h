#pragma once
// What a step adds up in device memory: losses, the gradient's norm, and with them the fixed-order
// sums, image by image and block by block, that make both independent of the placement.

#include <memory>

#include "backend/operands.h"
#include "lockstep/backend/backend.h"
#include "step/step.h"

namespace lockstep {

/// How many sums are kept apart, to be added up on the host in the order of the global batch. None
/// where a device's own order does (without Backend::sums_by_image).
struct FixedOrderSums {
  std::size_t images = 0;  // with a loss of their own, for each of the losses
  std::size_t blocks = 0;  // of the gradient's elements, with squares of their own (kNormBlock)
};

/// One allocation, so that one copy brings all of it to the host: StepSums, then [loss][image],
/// then [block]. Used by its rank's thread.
class StepTotals {
 public:
  StepTotals(Backend& backend, std::size_t losses, const FixedOrderSums& fixed);

  /// The address in device memory.
  StepSums& sums() const { return *static_cast<StepSums*>(memory_.data()); }
  /// In device memory, [image]; null: none.
  double* image_losses(std::size_t loss) const;
  double* block_squares() const;

  /// Begins a step. What is not finite stays: the update of a step that was begun before the host
  /// saw it must not be done, either.
  void begin();
  /// Forgets all of it.
  void clear();

  /// Starts to copy the totals to the host, as what has been issued until now leaves them.
  void start_readback(int slot) { readback_->start(slot); }
  /// Waits for that copy, and writes the sums and their terms.
  void read(int slot, StepOutcome& outcome);

 private:
  double* terms() const { return reinterpret_cast<double*>(&sums() + 1); }
  std::size_t term_count() const { return losses_ * fixed_.images + fixed_.blocks; }
  void clear_terms();

  Backend& backend_;
  const std::size_t losses_;
  const FixedOrderSums fixed_;
  Storage memory_;
  std::unique_ptr<Readback> readback_;  // kStepSlots times
};

}  // namespace lockstep
