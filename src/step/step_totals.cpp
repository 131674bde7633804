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
void StepTotals::read(int slot, StepOutcome& outcome) {
  const auto* read = static_cast<const StepSums*>(readback_->wait(slot));
  const auto* numbers = reinterpret_cast<const double*>(read + 1);
  const bool by_image = fixed_.images > 0, by_block = fixed_.blocks > 0;
  const double* const losses = by_image ? numbers : read->losses.data();
  const double* const squares = by_block ? numbers + losses_ * fixed_.images : &read->squared_norm;
  outcome.sums = *read;
  outcome.loss_terms.assign(losses, losses + losses_ * (by_image ? fixed_.images : 1));
  outcome.square_terms.assign(squares, squares + (by_block ? fixed_.blocks : 1));
}

}  // namespace lockstep
