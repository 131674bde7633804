#include "lockstep/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

double step_factor(const ScheduleOptions& options, double progress) {
  static const std::vector<double> kDefaultMilestones{2.0 / 3.0, 8.0 / 9.0};
  double factor = 1;
  for (const double milestone :
       options.milestones.empty() ? kDefaultMilestones : options.milestones) {
    if (progress >= milestone) factor *= options.gamma;
  }
  return factor;
}

double decay(const ScheduleOptions& options, double progress) {
  switch (options.type) {
    case ScheduleType::kPoly:
      return std::pow(1.0 - progress, options.power);
    case ScheduleType::kConstant:
      return 1;
    case ScheduleType::kStep:
      return step_factor(options, progress);
    case ScheduleType::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return 1;
}

double warmup(const ScheduleOptions& options, std::int64_t iter) {
  if (iter >= options.warmup_iters) return 1;
  const double done = static_cast<double>(iter) / static_cast<double>(options.warmup_iters);
  return options.warmup_ratio + (1.0 - options.warmup_ratio) * done;
}

}  // namespace

double learning_rate(const ScheduleOptions& options, double base_lr, std::int64_t iter,
                     std::int64_t max_iters) {
  LOCKSTEP_CHECK(iter >= 0 && iter < max_iters, "expected an iteration in [0, ", max_iters,
                 "), got ", iter);
  const double progress = static_cast<double>(iter) / static_cast<double>(max_iters);
  return base_lr * decay(options, progress) * warmup(options, iter);
}

}  // namespace lockstep
