// A whole training step on one batch that lies in memory: forward, backward, exchanges, update.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/bench/bench.h"
#include "compare/table.h"
#include "core/json.h"
#include "core/profiler.h"
#include "step/replica.h"

namespace lockstep {
namespace {

constexpr int kStepIters = 20;

struct StepBench {
  BenchTraining training;
  std::vector<double> step, compute, wait, exchange, other;  // milliseconds, [step]
  double bytes_given = 0;                                    // to other processes in a step

  double images_per_second() const {
    return 1000 * static_cast<double>(training.batch.count()) / percentiles(step).median;
  }
};

void add_times(StepBench& bench, double seconds, const StepTimes& times) {
  bench.step.push_back(1000 * seconds);
  bench.compute.push_back(1000 * times.compute);
  bench.wait.push_back(1000 * times.batch_norm_wait);
  bench.exchange.push_back(1000 * times.gradient_exchange);
  bench.other.push_back(
      1000 * (seconds - times.compute - times.batch_norm_wait - times.gradient_exchange));
}

/// The next step is begun and the one before is finished, as the trainer does it: GPUs go from step
/// to step without waiting for the host. The steps from `end` on, which were begun while others
/// were timed, are not.
void time_step_ahead(StepBench& bench, std::int64_t step, std::int64_t end) {
  StepResult result;
  const double seconds = seconds_of([&] {
    if (step < end) bench.training.begin_step(step + bench.training.replicas->steps_ahead());
    result = bench.training.replicas->finish_step();
  });
  if (kWarmupSteps <= step && step < end) add_times(bench, seconds, result.times);
}

/// The whole step, and no other beside it.
void time_step(StepBench& bench, std::int64_t step) {
  StepResult result;
  const double seconds = seconds_of([&] { result = bench.training.step(step); });
  if (step >= kWarmupSteps) add_times(bench, seconds, result.times);
}

Json step_json(const StepBench& bench, const BenchArguments& arguments) {
  const BenchTraining& training = bench.training;
  const Json phases = {{"compute", percentiles_json(percentiles(bench.compute))},
                       {"batch_norm_wait", percentiles_json(percentiles(bench.wait))},
                       {"gradient_exchange", percentiles_json(percentiles(bench.exchange))},
                       {"other", percentiles_json(percentiles(bench.other))}};
  return {
      {"bench", "step"},
      {"config", arguments.config.string()},
      {"bn_mode", to_string(training.config.bn.mode)},
      {"processes", training.replicas->rank_layout().processes()},
      {"devices", training.replicas->size()},
      {"device", to_string(training.devices.front())},
      {"global_batch", training.batch.count()},
      {"size", {training.size.height, training.size.width}},
      {"parameters", training.replicas->parameter_count()},
      {"ms_per_step", percentiles_json(percentiles(bench.step))},
      {"images_per_second", bench.images_per_second()},
      {"phases_ms", phases},
      {"bytes_given_per_step", bench.bytes_given},
      {"convolutions", training.replicas->replica(0).backend().convolutions().conv2d_algorithms()},
      {"peak_memory_bytes", peak_memory_bytes()}};
}

void print_table(const StepBench& bench) {
  const BenchTraining& training = bench.training;
  fmt::print(
      "Training step, {} BatchNorm, {} device(s) from {}, batch {} of {}x{}, {} parameters\n\n",
      to_string(training.config.bn.mode), training.replicas->size(),
      to_string(training.devices.front()), training.batch.count(), training.size.height,
      training.size.width, training.replicas->parameter_count());
  Table table{{"", "ms, median (p10 to p90)"}, {}};
  const auto add = [&](const char* name, const std::vector<double>& values) {
    table.rows.push_back({name, format_percentiles(percentiles(values), 1)});
  };
  add("step", bench.step);
  add("  compute", bench.compute);
  add("  waiting in BatchNorm", bench.wait);
  add("  gradient exchange, update", bench.exchange);
  add("  other", bench.other);
  fmt::print("{}\n{:.1f} images/s, peak memory {:.0f} MB\n", to_markdown(table),
             bench.images_per_second(), static_cast<double>(peak_memory_bytes()) / 1e6);
  const int processes = training.replicas->rank_layout().processes();
  if (processes == 1) return;
  fmt::print("{} processes; in a step the first one gives the others {:.0f} bytes\n", processes,
             bench.bytes_given);
}

/// Two trainings in one process, a step of each in turns: what the machine does beside them falls
/// on both alike, so that a few percent between them can be told.
int bench_in_turns(const BenchArguments& arguments) {
  BenchArguments changed = arguments;
  changed.common.overrides.insert(changed.common.overrides.end(), arguments.against.begin(),
                                  arguments.against.end());
  StepBench bench, other;
  bench.training = bench_training(arguments);
  other.training = bench_training(changed);
  const int iters = arguments.iters > 0 ? arguments.iters : kStepIters;
  for (int step = 0; step < kWarmupSteps + iters; ++step) {
    const bool first = step % 2 == 0;  // neither always follows the other
    time_step(first ? bench : other, step);
    time_step(first ? other : bench, step);
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < bench.step.size(); ++i) {
    ratios.push_back(bench.step[i] / other.step[i]);
  }
  if (arguments.common.json) {
    Json root = step_json(bench, arguments);
    root["against"] = step_json(other, changed);
    root["against"]["settings"] = arguments.against;
    root["ratio"] = percentiles_json(percentiles(ratios));
    fmt::print("{}\n", json_text(root, 2));
    return kExitDone;
  }
  print_table(bench);
  fmt::print("\nAgainst {}:\n", fmt::join(arguments.against, " "));
  print_table(other);
  fmt::print("\nA step takes {} times the other's (of {} pairs; memory is that of both)\n",
             format_percentiles(percentiles(ratios), 3), ratios.size());
  return kExitDone;
}

}  // namespace

int bench_step(const BenchArguments& arguments) {
  if (!arguments.against.empty()) {
    check_alone("bench step --against");
    return bench_in_turns(arguments);
  }
  const auto& world = arguments.common.world.get();
  StepBench bench;
  bench.training = bench_training(arguments);
  const int iters = arguments.iters > 0 ? arguments.iters : kStepIters;
  const int timed_end = kWarmupSteps + iters;
  const int ahead = bench.training.replicas->steps_ahead();
  const int steps = timed_end + ahead;
  const std::int64_t given_before = world.bytes_given();
  for (int step = 0; step < ahead; ++step) bench.training.begin_step(step);
  for (int step = 0; step < steps; ++step) {
    if (step == kWarmupSteps) start_profiler();
    time_step_ahead(bench, step, timed_end);
  }
  stop_profiler();
  if (!world.first()) return kExitDone;
  bench.bytes_given = static_cast<double>(world.bytes_given() - given_before) / steps;
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(step_json(bench, arguments), 2));
  } else {
    print_table(bench);
  }
  return kExitDone;
}

}  // namespace lockstep
