#pragma once
// What a configuration says and cannot mean, or hardly, though every key is within its range. The
// one rule: what no person can mean is refused; what some might is warned of, with the remedy.

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace lockstep {

struct JudgedValue {
  std::string key;       // that is at fault
  bool refused = false;  // else it is warned of
  std::string message;   // what it says, and what was expected
  std::string remedy;
};

/// What can be said before there are data and devices.
std::vector<JudgedValue> judge_values(const Config& config);

/// What only the length of the run and the number of devices tell: a warm-up or milestones
/// beyond the end, a rate that was scaled or rises, an average over more steps than there are.
std::vector<JudgedValue> judge_run(const Config& config, std::int64_t steps, int devices);

/// Throws ConfigError with all that is refused.
void throw_if_refused(const std::vector<JudgedValue>& values);

/// The message and its remedy.
std::string to_string(const JudgedValue& value);

}  // namespace lockstep
