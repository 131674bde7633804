#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>

#include "app/bench/bench.h"
#include "app/cli.h"
#include "app/world_session.h"
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

int run_bench(const BenchArguments& arguments) {
  if (arguments.what == "step") return bench_step(arguments);
  if (arguments.what == "exchange") return bench_exchange(arguments);
  check_alone("bench " + arguments.what);
  if (arguments.what == "layers") return bench_layers(arguments);
  if (arguments.what == "batch_norm") return bench_batch_norm(arguments);
  throw ConfigError("unknown benchmark " + arguments.what +
                    " (expected step, layers, batch_norm or exchange)");
}

}  // namespace lockstep
