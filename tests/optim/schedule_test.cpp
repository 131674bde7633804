#include "lockstep/optim/schedule.h"

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr double kPi = 3.14159265358979323846;

std::vector<double> column(const ScheduleOptions& options, double lr, std::int64_t max_iters) {
  std::vector<double> rates;
  for (std::int64_t i = 0; i < max_iters; ++i) {
    rates.push_back(learning_rate(options, lr, i, max_iters));
  }
  return rates;
}

}  // namespace

TEST_CASE("poly: lr * (1 - i / max)^power") {
  const auto rates = column({}, 0.05, 200);
  for (int i = 0; i < 200; ++i) {
    CHECK(rates[i] == doctest::Approx(0.05 * std::exp(0.9 * std::log((200.0 - i) / 200.0))));
  }
  CHECK(rates.front() == 0.05);
  CHECK(rates.back() > 0);
  ScheduleOptions square;
  square.power = 2;
  CHECK(learning_rate(square, 1, 50, 100) == doctest::Approx(0.25));
}

TEST_CASE("constant") {
  ScheduleOptions options;
  options.type = ScheduleType::kConstant;
  for (const double rate : column(options, 0.3, 7)) CHECK(rate == 0.3);
}

TEST_CASE("cosine: half a period") {
  ScheduleOptions options;
  options.type = ScheduleType::kCosine;
  const auto rates = column(options, 2, 40);
  for (int i = 0; i < 40; ++i) {
    CHECK(rates[i] == doctest::Approx(1 + std::cos(kPi * i / 40)));
  }
}

TEST_CASE("step: a factor at each milestone") {
  ScheduleOptions options;
  options.type = ScheduleType::kStep;
  const auto usual = column(options, 1, 90);  // 2/3 and 8/9
  for (int i = 0; i < 90; ++i) {
    CHECK(usual[i] == doctest::Approx(i < 60 ? 1 : (i < 80 ? 0.1 : 0.01)));
  }
  options.milestones = {0.5};
  options.gamma = 0.25;
  const auto own = column(options, 1, 10);
  CHECK(own[4] == 1);
  CHECK(own[5] == 0.25);
  CHECK(own[9] == 0.25);
}

TEST_CASE("milestones from 1 on are iterations") {
  ScheduleOptions options;
  options.type = ScheduleType::kStep;
  options.milestones = {0.2, 7};
  const auto rates = column(options, 1, 10);
  for (int i = 0; i < 10; ++i) CHECK(rates[i] == doctest::Approx(i < 2 ? 1 : (i < 7 ? 0.1 : 0.01)));
  options.milestones = {70};
  CHECK(learning_rate(options, 1, 69, 100) == 1);
  CHECK(learning_rate(options, 1, 70, 100) == doctest::Approx(0.1));
  options.milestones = {7.5};
  CHECK_THROWS_AS(learning_rate(options, 1, 0, 10), ConfigError);
}

TEST_CASE("min_lr is where poly and cosine end, and what others leave alone") {
  ScheduleOptions options;
  options.min_lr = 0.01;
  for (const ScheduleType type : {ScheduleType::kPoly, ScheduleType::kCosine}) {
    options.type = type;
    ScheduleOptions plain;
    plain.type = type;
    const auto rates = column(options, 0.5, 50), others = column(plain, 0.49, 50);
    for (int i = 0; i < 50; ++i) CHECK(rates[i] == doctest::Approx(0.01 + others[i]));
    CHECK(rates.front() == doctest::Approx(0.5));
  }
  for (const ScheduleType type : {ScheduleType::kConstant, ScheduleType::kStep}) {
    options.type = type;
    CHECK(learning_rate(options, 0.5, 0, 10) == 0.5);
  }
}

TEST_CASE("warm-up scales the schedule, which runs on below it") {
  ScheduleOptions options;
  options.warmup_iters = 10;
  options.warmup_ratio = 0.1;
  ScheduleOptions plain;
  for (int i = 0; i < 30; ++i) {
    const double scale = i < 10 ? 0.1 + 0.9 * i / 10 : 1;
    CHECK(learning_rate(options, 0.5, i, 30) ==
          doctest::Approx(scale * learning_rate(plain, 0.5, i, 30)));
  }
}

TEST_CASE("iterations outside the run are refused") {
  CHECK_THROWS_AS(learning_rate({}, 1, -1, 10), Error);
  CHECK_THROWS_AS(learning_rate({}, 1, 10, 10), Error);
}

}  // namespace lockstep
