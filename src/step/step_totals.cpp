#include "step/step_totals.h"

#include <cstddef>

namespace lockstep {

StepTotals::StepTotals(Backend& backend, std::size_t losses, const FixedOrderSums& fixed)
    : backend_(backend), losses_(losses), fixed_(fixed) {
  const std::size_t bytes = sizeof(StepSums) + term_count() * sizeof(double);
  memory_ = backend_.allocate(bytes);
  readback_ = backend_.make_readback(bytes_tensor(memory_.data(), bytes), kStepSlots);
}

double* StepTotals::image_losses(std::size_t loss) const {
  return fixed_.images == 0 ? nullptr : terms() + loss * fixed_.images;
}

double* StepTotals::block_squares() const {
  return fixed_.blocks == 0 ? nullptr : terms() + losses_ * fixed_.images;
}

void StepTotals::clear_terms() {
  if (term_count() > 0) {
    backend_.fill(bytes_tensor(terms(), term_count() * sizeof(double)), 0);
  }
}

void StepTotals::begin() {
  backend_.sums().reset_sums(sums().losses.data(),
                             static_cast<int>(kMaxLosses) + 1);  // and the norm
  clear_terms();
}

void StepTotals::clear() {
  backend_.fill(bytes_tensor(&sums(), offsetof(StepSums, scale)), 0);
  clear_terms();
  backend_.synchronize();
}

// A sum is its own only term where no order is fixed.
StepOutcome StepTotals::read(int slot) {
  const auto* read = static_cast<const StepSums*>(readback_->wait(slot));
  const auto* numbers = reinterpret_cast<const double*>(read + 1);
  StepOutcome outcome;
  outcome.sums = *read;
  outcome.loss_terms = {read->losses.data(), losses_};
  outcome.square_terms = {&read->squared_norm, 1};
  if (fixed_.images > 0) outcome.loss_terms = {numbers, losses_ * fixed_.images};
  if (fixed_.blocks > 0) outcome.square_terms = {numbers + losses_ * fixed_.images, fixed_.blocks};
  return outcome;
}

}  // namespace lockstep
