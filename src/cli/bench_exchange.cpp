// One exchange of BatchNorm statistics: every rank hands in [2, channels] floats, the master merges
// them and all get the result. The ranks do nothing else, so this is the cost of the rendezvous and
// the merge.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "lockstep/parallel/replica_group.h"
#include "lockstep/report/table.h"
#include "lockstep/sync/communicator.h"

namespace lockstep {
namespace {

constexpr int kDefaultIters = 20;
constexpr int kExchangesPerIter = 200;
constexpr int kMostRanks = 8;
constexpr std::int64_t kChannels[] = {16, 128, 1024};

struct ExchangeTimes {
  int ranks = 0;
  std::int64_t channels = 0;
  Percentiles microseconds;  // per exchange
};

ExchangeTimes measure(int ranks, std::int64_t channels, int iters) {
  const std::vector<Device> devices =
      parse_devices("cpu:" + std::to_string(ranks), cuda_device_count());
  const std::unique_ptr<CommunicatorGroup> communicators = make_communicators(devices, {});
  ReplicaGroup group(devices, *communicators);
  const auto exchange_many = [&](int rank) {
    const std::vector<float> moments(2 * static_cast<std::size_t>(channels), 0.5F);
    const SyncCall call{"bench", Direction::kForward, 0, channels};
    Communicator& communicator = communicators->at(rank);
    for (int i = 0; i < kExchangesPerIter; ++i) communicator.exchange(call, {1, moments.data()});
  };
  group.run(exchange_many);
  std::vector<double> times;
  for (int i = 0; i < iters; ++i) {
    times.push_back(1e6 * seconds_of([&] { group.run(exchange_many); }) / kExchangesPerIter);
  }
  return {ranks, channels, percentiles(times)};
}

}  // namespace

int bench_exchange(const BenchArguments& arguments) {
  const int iters = arguments.iters > 0 ? arguments.iters : kDefaultIters;
  const int most = arguments.common.devices.empty()
                       ? kMostRanks
                       : static_cast<int>(bench_devices(arguments).size());
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  Table table{{"ranks", "channels", "microseconds per exchange"}, {}};
  for (int ranks = 1; ranks <= most; ranks = std::min(2 * ranks, std::max(most, ranks + 1))) {
    for (const std::int64_t channels : kChannels) {
      const ExchangeTimes times = measure(ranks, channels, iters);
      cases.push_back({{"ranks", ranks},
                       {"channels", channels},
                       {"microseconds", percentiles_json(times.microseconds)}});
      table.rows.push_back({std::to_string(ranks), std::to_string(channels),
                            format_percentiles(times.microseconds, 1)});
    }
  }
  if (arguments.common.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"bench", "exchange"}, {"cases", cases}}.dump(2));
  } else {
    fmt::print("{}", to_markdown(table));
  }
  return kExitDone;
}

}  // namespace lockstep
