#pragma once
// What `lockstep selftest` checks: the library's arithmetic on the user's machine and devices,
// against plain computations in double, differences, and itself on other devices. Every check is a
// row of a table. The code under test is the library as programs use it; what it is compared with
// is written here, from the formulas, and shares nothing with it.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

/// The largest errors that a check has found. None where there is nothing to measure.
struct Measured {
  std::optional<double> absolute;
  std::optional<double> relative;  // what the tolerance is about
};

/// A row. `run` measures; where it finds something wrong that has no size, it throws Error.
struct SelftestCheck {
  std::string group, name;
  std::string compared;  // what with what
  double tolerance = 0;  // of the relative error; 0: equal
  std::function<Measured()> run = nullptr;
};
using SelftestChecks = std::vector<SelftestCheck>;

/// What a check came to.
struct SelftestOutcome {
  bool ok = false;
  Measured measured = {};
  std::string trouble = {};  // what was wrong
};
SelftestOutcome run_check(const SelftestCheck& check);

/// On what the checks run.
struct SelftestDevices {
  std::vector<Device> given;  // as asked for

  bool gpus() const { return given.front().kind == DeviceKind::kCuda; }
  /// So many replicas on the given devices; more than these share GPUs.
  std::vector<Device> replicas(int count) const;
  /// All given devices, or four replicas on them where that is more.
  std::vector<Device> several() const;
};

/// What layers and losses compute, against plain loops in double.
SelftestChecks layer_checks(const SelftestDevices& devices);
/// Every kind of layer and loss: gradients against central differences.
SelftestChecks gradient_checks(const SelftestDevices& devices);
/// BatchNorm's modes, statistics and exchanges against plain loops in double.
SelftestChecks batch_norm_checks(const SelftestDevices& devices);
/// What stands in for synchronized BatchNorm, against plain loops in double.
SelftestChecks rival_norm_checks(const SelftestDevices& devices);
/// Trainings on these devices against others, against one in double, and from run to run.
SelftestChecks training_checks(const SelftestDevices& devices);
/// Replicas that fail.
SelftestChecks failure_checks(const SelftestDevices& devices);

/// All of them.
SelftestChecks selftest_checks(const SelftestDevices& devices);

}  // namespace lockstep
