#pragma once
// Learning rate as a pure function of the iteration.

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/core/options.h"

namespace lockstep {

enum class ScheduleType : std::uint8_t { kPoly, kConstant, kStep, kCosine };
constexpr auto names_of(ScheduleType) {
  return std::to_array<Named<ScheduleType>>({{"poly", ScheduleType::kPoly},
                                             {"constant", ScheduleType::kConstant},
                                             {"step", ScheduleType::kStep},
                                             {"cosine", ScheduleType::kCosine}});
}

struct ScheduleOptions {
  ScheduleType type = ScheduleType::kPoly;
  double power = 0.9;  // poly: min_lr + (lr - min_lr) * (1 - i / max)^power
  double min_lr = 0;   // poly, cosine: where they end
  double gamma = 0.1;  // step: factor at each milestone
  // step: shares of max_iters below 1, iterations from 1 on; default {2/3, 8/9}
  std::vector<double> milestones;
  std::int64_t warmup_iters = 0;  // linear from warmup_ratio * lr
  double warmup_ratio = 0.01;

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("type", type, "poly, constant, step, cosine");
    v("power", power, "poly", {.in = limits::kNotNegative});
    v("min_lr", min_lr, "poly, cosine: the learning rate at the end",
      {.in = limits::kNotNegative, .written = min_lr != 0});
    v("gamma", gamma, "step: factor at each milestone", {.in = limits::kNotNegative});
    v("milestones", milestones,
      "step: shares of max_iters, or iterations where they are 1 or more; default [2/3, 8/9]",
      {.in = limits::kPositive});
    v("warmup_iters", warmup_iters, "linear warm-up", {.in = limits::kNotNegative});
    v("warmup_ratio", warmup_ratio, "first learning rate / lr", {.in = limits::kShare});
  }
};

/// Learning rate of 0-based iteration `iter` of `max_iters`. During warm-up the schedule runs on
/// and is scaled by warmup_ratio + (1 - warmup_ratio) * iter / warmup_iters. Throws Error when
/// `iter` is out of range, ConfigError for a milestone of 1 or more that is no whole number.
double learning_rate(const ScheduleOptions& options, double base_lr, std::int64_t iter,
                     std::int64_t max_iters);

}  // namespace lockstep
