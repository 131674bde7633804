#pragma once
// Which convolutions of this process may round to TF32, as the choices of their engines say.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/conv/autotuner.h"

namespace lockstep::test {

/// How many convolutions have been prepared that may. Without a file of choices.
inline std::int64_t tf32_problems() {
  const std::vector<Choice> choices = Autotuner::of({}).choices();
  return std::count_if(choices.begin(), choices.end(), [](const Choice& choice) {
    return choice.problem.find(" with TF32") != std::string::npos;
  });
}

}  // namespace lockstep::test
