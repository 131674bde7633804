#pragma once

#include "backend/operand.h"

namespace lockstep::test {

/// What a loss comes to: it is added to what is there, its gradient is not.
struct LossResults {
  double loss = 0.25;
  Values gradient;
  friend bool operator==(const LossResults&, const LossResults&) = default;
};

}  // namespace lockstep::test
