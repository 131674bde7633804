#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>

#include "app/bench/bench.h"
#include "app/command.h"
#include "config/config.h"
#include "core/json.h"
#include "core/seconds_since.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"

namespace lockstep {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return seconds_since(start);
}

std::string format_percentiles(const Percentiles& values, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", values.median, digits, values.p10, digits,
                     values.p90, digits);
}

Json percentiles_json(const Percentiles& values) {
  return {{"median", values.median}, {"p10", values.p10}, {"p90", values.p90}, {"n", values.count}};
}

std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::vector<Device> bench_devices(const BenchArguments& arguments) {
  const std::string& devices = arguments.common.devices;
  return parse_devices(devices.empty() ? default_devices() : devices);
}

namespace {

void declare_bench(Options& options, BenchArguments& arguments) {
  options.add("WHAT", arguments.what, "step, layers, batch_norm or exchange")
      .takes("step|layers|batch_norm|exchange")
      .required();
  options.add_config("CONFIG", arguments.config, "step, layers: configuration")
      .goes_with({"step", "layers"});
  options
      .add_flag("--eval", arguments.eval,
                "layers: of an evaluation of one image, not of a training step")
      .goes_with({"layers"});
  options
      .add("--against", arguments.against,
           "step: time a training with this setting changed, too, step by step in turns")
      .takes("KEY=VALUE")
      .one_value_each()
      .goes_with({"step"});
  options.add("--iters", arguments.iters, "measured iterations; default: the benchmark's own")
      .takes_count(1, 1000000);
  options.add_devices();
  options.add_overrides().goes_with({"step", "layers"});
  options.add_json();
}

int run_bench(const BenchArguments& arguments) {
  if (arguments.what == "step") return bench_step(arguments);
  if (arguments.what == "exchange") return bench_exchange(arguments);
  check_alone("bench " + arguments.what);
  if (arguments.what == "layers") return bench_layers(arguments);
  if (arguments.what == "batch_norm") return bench_batch_norm(arguments);
  throw ConfigError("unknown benchmark " + arguments.what +
                    " (expected step, layers, batch_norm or exchange)");
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .says = "Measure a training step, its layers, BatchNorm or its exchange",
          .page = "bench",
          .examples = {{"lockstep bench step data/configs/quickstart.toml -d cpu:4 --iters 10",
                        "how long a training step takes"},
                       {"lockstep bench exchange -d cpu:4 --iters 10",
                        "what a BatchNorm exchange costs"}},
          .by_several_processes = true,
          .declare = declares(declare_bench, run_bench)};
}

}  // namespace lockstep
