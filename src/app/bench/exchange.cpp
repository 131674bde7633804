// One exchange of BatchNorm statistics: every rank hands in [2, channels] floats of its device and
// gets those of all. The ranks do nothing else, so this is the cost of the rendezvous; on GPUs of
// what it issues to their streams, until these are done. There the cost inside a recorded step is
// measured, too.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "app/bench/bench.h"
#include "compare/table.h"
#include "core/json.h"
#include "lockstep/backend/backend.h"
#include "lockstep/sync/sync_group.h"
#include "step/replica_group.h"

namespace lockstep {
namespace {

constexpr int kExchangeIters = 20;
constexpr int kExchangesPerIter = 200;
constexpr int kCapturedExchanges = 100;  // of a recording
constexpr int kMostRanks = 8;
constexpr std::int64_t kExchangeChannels[] = {16, 128, 1024};

struct ExchangeTimes {
  int ranks = 0;
  std::int64_t channels = 0;
  Percentiles microseconds;             // per exchange
  std::optional<Percentiles> captured;  // the same, inside a recorded step
};

/// A rank's backend and its statistics there.
struct ExchangeRank {
  std::unique_ptr<Backend> backend;
  Storage moments;  // [2, channels]
};

ExchangeTimes measure(std::span<const Device> devices, std::int64_t channels, int iters,
                      const SyncGroupOptions& options) {
  SyncGroup communicators(devices, options);
  const int first = communicators.rank_layout().first_rank();
  std::vector<ExchangeRank> ranks(devices.size());
  ReplicaGroup group(devices, communicators);
  group.run([&](int rank) {
    ExchangeRank& own = ranks[static_cast<std::size_t>(rank - first)];
    own.backend = make_backend(devices[static_cast<std::size_t>(rank - first)], 1);
    own.moments = own.backend->allocate(2 * static_cast<std::size_t>(channels) * sizeof(float));
    own.backend->fill(Tensor(own.moments.data(), Shape{2, channels}), 0.5F);
    communicators.at(rank).attach(*own.backend);
  });
  const auto exchange_many = [&](int rank) {
    const ExchangeRank& own = ranks[static_cast<std::size_t>(rank - first)];
    const SyncCall call{"bench", Direction::kForward, 0, channels};
    const StatSlot local{1, static_cast<const float*>(own.moments.data())};
    Communicator& communicator = communicators.at(rank);
    for (int i = 0; i < kExchangesPerIter; ++i) communicator.all_show(call, local);
    own.backend->synchronize();
  };
  group.run(exchange_many);
  std::vector<double> times;
  for (int i = 0; i < iters; ++i) {
    times.push_back(1e6 * seconds_of([&] { group.run(exchange_many); }) / kExchangesPerIter);
  }
  return {communicators.size(), channels, percentiles(times), std::nullopt};
}

std::optional<Percentiles> measure_captured(std::span<const Device> devices, std::int64_t channels,
                                            int iters) {
  const std::vector<double> times =
      captured_exchange_microseconds(devices, channels, kCapturedExchanges, iters);
  if (times.empty()) return std::nullopt;
  return percentiles(times);
}

Json case_json(const ExchangeTimes& times) {
  Json json = {{"ranks", times.ranks},
               {"channels", times.channels},
               {"microseconds", percentiles_json(times.microseconds)}};
  if (times.captured) json["captured_microseconds"] = percentiles_json(*times.captured);
  return json;
}

}  // namespace

int bench_exchange(const BenchArguments& arguments) {
  const int iters = arguments.iters > 0 ? arguments.iters : kExchangeIters;
  const std::vector<Device> devices = arguments.common.devices.empty()
                                          ? parse_devices("cpu:" + std::to_string(kMostRanks))
                                          : bench_devices(arguments);
  const int most = static_cast<int>(devices.size());
  // With other processes all devices take part at once.
  auto& world = arguments.common.world.get();
  const bool alone = world.size() == 1;
  int ranks = alone ? 1 : most;
  Json cases = Json::array();
  Table table{{"ranks", "channels", "microseconds per exchange", "in a recorded step"}, {}};
  for (; ranks <= most; ranks = std::min(2 * ranks, std::max(most, ranks + 1))) {
    for (const std::int64_t channels : kExchangeChannels) {
      const auto used = std::span(devices).first(static_cast<std::size_t>(ranks));
      ExchangeTimes times = measure(used, channels, iters, {.world = world});
      if (alone) times.captured = measure_captured(used, channels, iters);
      cases.push_back(case_json(times));
      table.rows.push_back({std::to_string(times.ranks), std::to_string(channels),
                            format_percentiles(times.microseconds, 1),
                            times.captured ? format_percentiles(*times.captured, 1) : "-"});
    }
  }
  if (!world.first()) return kExitDone;
  if (arguments.common.json) {
    const Json root = {
        {"bench", "exchange"}, {"device", to_string(devices.front())}, {"cases", cases}};
    fmt::print("{}\n", json_text(root, 2));
  } else {
    fmt::print("{}", to_markdown(table));
  }
  return kExitDone;
}

}  // namespace lockstep
