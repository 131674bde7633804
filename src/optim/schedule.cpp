#include "lockstep/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool has_passed(double milestone, std::int64_t iter, double progress) {
  if (milestone < 1) return progress >= milestone;
  if (milestone != std::floor(milestone)) {
    throw ConfigError(concat("schedule.milestones: ", milestone, " is neither a share below 1 nor ",
                             "a number of iterations"));
  }
  return static_cast<double>(iter) >= milestone;
}

double step_factor(const ScheduleOptions& options, std::int64_t iter, double progress) {
  static const std::vector<double> kDefaultMilestones{2.0 / 3.0, 8.0 / 9.0};
  double factor = 1;
  for (const double milestone :
       options.milestones.empty() ? kDefaultMilestones : options.milestones) {
    if (has_passed(milestone, iter, progress)) factor *= options.gamma;
  }
  return factor;
}

double decay(const ScheduleOptions& options, std::int64_t iter, double progress) {
  switch (options.type) {
    case ScheduleType::kPoly:
      return std::pow(1.0 - progress, options.power);
    case ScheduleType::kConstant:
      return 1;
    case ScheduleType::kStep:
      return step_factor(options, iter, progress);
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
  const bool ends = options.type == ScheduleType::kPoly || options.type == ScheduleType::kCosine;
  const double end = ends ? options.min_lr : 0;
  return (end + (base_lr - end) * decay(options, iter, progress)) * warmup(options, iter);
}

}  // namespace lockstep
