// BatchNorm alone: which samples are normalised together, by what, and what that does to the
// gradients and to the running statistics. fp32 against double, so that a few roundings are all
// that may lie between: 64 of them are tolerated.

#include <chrono>
#include <limits>
#include <memory>
#include <numeric>

#include "checks/probe.h"
#include "checks/reference_batch_norm.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"
#include "sync/all_reduce.h"

namespace lockstep {
namespace {

const char* const kPlain = "outputs and all gradients, plain loops in double";

Outputs one_norm(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  return {{"out", norm(net, x, "bn")}};
}

ReferenceBatchNorm plain(const NormLayer& norm, const Floats& input,
                         const NamedFloats& parameters) {
  ReferenceBatchNorm layer;
  layer.x = widen(input);
  layer.weight = widen(parameters.at("bn.weight"));
  layer.bias = widen(parameters.at("bn.bias"));
  layer.channels = layer.weight.size();
  layer.eps = static_cast<double>(norm.options.eps);
  layer.clamp = norm.options.eps_mode == EpsMode::kClamp;
  return layer;
}

// --- which samples are normalised together ---

/// Samples that are normalised together.
using SampleGroup = std::vector<std::int64_t>;

/// All samples from `begin` up to `end`.
SampleGroup sample_range(std::int64_t begin, std::int64_t end) {
  SampleGroup group(static_cast<std::size_t>(end - begin));
  std::iota(group.begin(), group.end(), begin);
  return group;
}

struct GroupCase {
  std::string name;
  std::vector<Device> devices;
  NormLayer norm;
  Shape input;
  std::vector<SampleGroup> groups;
  Floats values = {};  // empty: normal ones
  TransportKind transport = TransportKind::kAuto;
};

struct GroupPass {
  NamedFloats parameters;
  Floats input, grad_output;
  ProbePass pass;
};

GroupPass run_case(const GroupCase& c) {
  Probe probe({c.devices, one_norm, c.norm, c.input, c.transport});
  GroupPass run;
  run.parameters = probe.random_parameters();
  run.input = c.values.empty() ? normal_floats(c.input.elements(), 1) : c.values;
  run.grad_output = normal_floats(c.input.elements(), 2);
  run.pass = probe.step(run.input, run.grad_output);
  return run;
}

/// The places of a group's values in all samples'.
std::vector<std::size_t> places_of(const SampleGroup& group, std::int64_t values_per_sample) {
  std::vector<std::size_t> places;
  for (const std::int64_t sample : group) {
    for (std::int64_t i = 0; i < values_per_sample; ++i) {
      places.push_back(static_cast<std::size_t>(sample * values_per_sample + i));
    }
  }
  return places;
}

/// Each group by its own moments, with the gradients of all in `x`, `weight` and `bias`.
std::pair<Doubles, ReferenceBatchNorm::Gradients> train_groups(const GroupCase& c,
                                                               const ReferenceBatchNorm& whole,
                                                               const Doubles& grad_y) {
  Doubles y(whole.x.size());
  ReferenceBatchNorm::Gradients all{.x = y,
                                    .residual = {},
                                    .weight = Doubles(whole.channels),
                                    .bias = Doubles(whole.channels),
                                    .sum_dy = {},
                                    .sum_dy_xmu = {}};
  for (const SampleGroup& group : c.groups) {
    const auto places = places_of(group, c.input.elements() / c.input.batch());
    ReferenceBatchNorm part = whole;
    part.x.clear();
    Doubles part_grad;
    for (const std::size_t place : places) {
      part.x.push_back(whole.x[place]);
      part_grad.push_back(grad_y[place]);
    }
    const ReferenceBatchNorm::Output out = part.forward();
    const ReferenceBatchNorm::Gradients grads = part.backward(out, part_grad);
    for (std::size_t i = 0; i < places.size(); ++i) {
      y[places[i]] = out.y[i];
      all.x[places[i]] = grads.x[i];
    }
    for (std::size_t channel = 0; channel < whole.channels; ++channel) {
      all.weight[channel] += grads.weight[channel];
      all.bias[channel] += grads.bias[channel];
    }
  }
  return {y, all};
}

Measured check_groups(const GroupCase& c) {
  const GroupPass run = run_case(c);
  const auto [y, grads] =
      train_groups(c, plain(c.norm, run.input, run.parameters), widen(run.grad_output));
  Measured all = difference(std::span<const float>(run.pass.output), y);
  all = worst(all, difference(std::span<const float>(run.pass.input_grad), grads.x));
  all = worst(all, difference(run.pass.grads.at("bn.weight"), grads.weight));
  return worst(all, difference(run.pass.grads.at("bn.bias"), grads.bias));
}

/// Of torch.chunk.
std::vector<SampleGroup> chunks(std::int64_t samples, int parts) {
  std::vector<SampleGroup> all;
  std::int64_t begin = 0;
  for (const std::int64_t count : chunk_sizes(samples, parts)) {
    all.push_back(sample_range(begin, begin + count));
    begin += count;
  }
  return all;
}

/// A channel that is constant, one whose variance is below eps, and one above.
Floats small_variances(const Shape& shape) {
  Floats values = normal_floats(shape.elements(), 1);
  for (std::size_t i = 0; i < values.size(); i += 3) {
    values[i] = 1.5F;
    values[i + 1] *= 2e-3F;
  }
  return values;
}

std::vector<GroupCase> group_cases(const SelftestDevices& devices) {
  const std::vector<Device> one = devices.replicas(1), two = devices.replicas(2),
                            four = devices.replicas(4), several = devices.several();
  const Shape eight{8, 3, 4, 3}, five{5, 3, 4, 3};
  const auto whole = [](std::int64_t count) {
    return std::vector<SampleGroup>{sample_range(0, count)};
  };
  const NormLayer add = SyncBatchNorm(), clamp = SyncBatchNorm({.eps_mode = EpsMode::kClamp});
  return {
      {"sync = one big batch", several, SyncBatchNorm(), eight, whole(8)},
      {"sync, 5 images on 4 devices (2,2,1,0)", four, SyncBatchNorm(), five, whole(5)},
      {"sync, 1 image on 4 devices", four, SyncBatchNorm(), {1, 3, 4, 3}, whole(1)},
      {"sync, one value per device", four, SyncBatchNorm(), {4, 1, 1, 3}, whole(4)},
      {"sync in groups {0,2}, {1,3}",
       four,
       SyncBatchNorm({}, {{0, 2}, {1, 3}}),
       eight,
       {{0, 1, 4, 5}, {2, 3, 6, 7}}},
      {"local, 5 images on 4 devices", four, BatchNorm2d(), five, chunks(5, 4)},
      {"ghost(3) on one device", one, GhostBatchNorm(3), eight, chunks(8, 3)},
      {"ghost(2) on each of two devices", two, GhostBatchNorm(2), eight, chunks(8, 4)},
      {"eps added", several, add, eight, whole(8), small_variances(eight)},
      {"eps added, one device", one, add, eight, whole(8), small_variances(eight)},
      {"eps clamped", several, clamp, eight, whole(8), small_variances(eight)},
      {"eps clamped, one device", one, clamp, eight, whole(8), small_variances(eight)},
  };
}

/// The same for inputs of every rank, odd numbers of samples among them.
Measured check_ghost_is_local(const SelftestDevices& devices) {
  Measured all{0, 0};
  for (const Shape& input :
       {Shape{8, 3}, Shape{9, 5, 3}, Shape{9, 4, 3, 3}, Shape{7, 2, 3, 2, 3}}) {
    GroupCase c{"", devices.replicas(1), GhostBatchNorm(4), input, {}};
    const ProbePass split = run_case(c).pass;
    c.devices = devices.replicas(4);
    c.norm = BatchNormOptions{};
    const ProbePass local = run_case(c).pass;
    all = worst(all, difference(std::span<const float>(split.output),
                                std::span<const float>(local.output)));
    all = worst(all, difference(std::span<const float>(split.input_grad),
                                std::span<const float>(local.input_grad)));
  }
  return all;
}

// --- statistics ---

/// A channel's values are 1e4 +- 1: their squares lose everything that matters in fp32.
Measured check_large_mean(const std::vector<Device>& devices) {
  const Shape shape{8, 12, 10, 3};
  const NormLayer norm = SyncBatchNorm({.momentum = 1.0});
  Probe probe({.devices = devices, .model = one_norm, .norm = norm, .input = shape});
  Floats input = normal_floats(shape.elements(), 1);
  for (float& value : input) value += 1e4F;
  probe.forward(input);
  const ReferenceBatchNorm::Moments expected =
      plain(norm, input, probe.random_parameters()).moments();
  return difference(std::span<const float>(probe.statistics().at("bn.running_var")),
                    expected.unbiased_var());
}

/// Three batches into the running statistics of every device; `weight(k)`: of batch k, from 1.
Measured check_running(const std::vector<Device>& devices, std::optional<double> momentum,
                       const std::function<double(int k)>& weight) {
  const Shape shape{6, 3, 4, 3};
  const NormLayer norm = SyncBatchNorm({.momentum = momentum});
  Probe probe({.devices = devices, .model = one_norm, .norm = norm, .input = shape});
  Doubles mean(3, 0.0), var(3, 1.0);
  for (int k = 1; k <= 3; ++k) {
    Floats input = normal_floats(shape.elements(), static_cast<std::uint64_t>(k));
    for (float& value : input) value = value * static_cast<float>(k) + 2.0F;
    probe.forward(input);
    const ReferenceBatchNorm::Moments batch =
        plain(norm, input, probe.random_parameters()).moments();
    for (std::size_t c = 0; c < 3; ++c) {
      mean[c] += weight(k) * (batch.mean[c] - mean[c]);
      var[c] += weight(k) * (batch.unbiased_var()[c] - var[c]);
    }
  }
  Measured all{0, 0};
  for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) {
    const NamedFloats statistics = probe.statistics(rank);
    all = worst(all, difference(std::span<const float>(statistics.at("bn.running_mean")), mean));
    all = worst(all, difference(std::span<const float>(statistics.at("bn.running_var")), var));
  }
  return all;
}

/// Evaluation normalises by the running statistics; a frozen layer does in training, too. Neither
/// changes them, and no device waits for another.
Measured check_fixed_statistics(const std::vector<Device>& devices, const NormLayer& norm,
                                bool training) {
  const Shape shape{5, 3, 4, 3};
  Probe probe(
      {.devices = devices, .model = one_norm, .norm = norm, .input = shape, .training = training});
  const NamedFloats statistics{{"bn.running_mean", {0.5F, -1, 2}},
                               {"bn.running_var", {0.3F, 1.5F, 4}}};
  probe.set_statistics(statistics);
  const Floats input = normal_floats(shape.elements(), 1);
  const Floats output = probe.forward(input);
  LOCKSTEP_CHECK(probe.sync_group().callbacks(Direction::kForward) == 0,
                 "expected no exchange between devices, got ",
                 probe.sync_group().callbacks(Direction::kForward));
  LOCKSTEP_CHECK(probe.statistics() == statistics,
                 "expected the running statistics to stay as they are; they have changed");
  const ReferenceBatchNorm::Moments by{0, widen(statistics.at("bn.running_mean")),
                                       widen(statistics.at("bn.running_var"))};
  const Doubles expected = plain(norm, input, probe.random_parameters()).forward(by).y;
  return difference(std::span<const float>(output), expected);
}

// --- exchanges ---

Measured check_transport(const std::vector<Device>& devices, TransportKind transport) {
  GroupCase c{"", devices, SyncBatchNorm(), {8, 3, 4, 5}, {sample_range(0, 8)}};
  c.transport = TransportKind::kHost;
  const ProbePass host = run_case(c).pass;
  c.transport = transport;
  const ProbePass pass = run_case(c).pass;
  LOCKSTEP_CHECK(pass.output == host.output && pass.input_grad == host.input_grad,
                 "expected the bytes that the transport 'host' gives, got others");
  return check_groups(c);
}

/// Whether SyncGroups with these options exist on these devices.
bool available(const std::vector<Device>& devices, const SyncGroupOptions& options) {
  try {
    const SyncGroup group(devices, options);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// Ranks that have nothing but numbers, which they exchange.
struct NumberRanks {
  static constexpr std::int64_t kCount = 1000;
  struct Rank {
    std::unique_ptr<Backend> backend;
    Storage memory;
    Floats read;  // what it got
    Tensor data() const { return {memory.data(), Shape{1, kCount}}; }
    Tensor copy() const { return {data().floats() + kCount, Shape{1, kCount}}; }
  };

  NumberRanks(const std::vector<Device>& on, const SyncGroupOptions& options)
      : devices(on), group(on, options), ranks(on.size()) {}

  /// Small integers, whose sums are exact.
  static Floats numbers(int factor) {
    Floats values(kCount);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(factor * static_cast<int>(i % 97));
    }
    return values;
  }
  void attach(int rank) {
    Rank& own = ranks[static_cast<std::size_t>(rank)];
    own.backend = make_backend(devices[static_cast<std::size_t>(rank)], 1);
    group.at(rank).attach(*own.backend);
    own.memory = own.backend->allocate(2 * kCount * sizeof(float));
  }
  void upload(int rank, int factor) {
    const Rank& own = ranks[static_cast<std::size_t>(rank)];
    own.backend->upload(own.data(), numbers(factor).data());
    own.backend->synchronize();
  }
  /// `data`: what this rank's device may read, on whichever it lies.
  void download(int rank, const float* data) {
    Rank& own = ranks[static_cast<std::size_t>(rank)];
    Floats part(kCount);
    // The backend only reads through this pointer.
    const Tensor source(const_cast<float*>(data), Shape{1, kCount});
    own.backend->copy(source, own.copy(), false);
    own.backend->download(part.data(), own.copy());
    own.backend->synchronize();
    own.read.insert(own.read.end(), part.begin(), part.end());
  }

  std::vector<Device> devices;
  SyncGroup group;
  std::vector<Rank> ranks;
};

SyncGroupOptions exchange_options(TransportKind transport, bool all_reduce) {
  SyncGroupOptions options;
  options.transport = transport;
  options.all_reduce = all_reduce;
  options.stall_timeout = std::chrono::seconds(20);
  return options;
}

/// `work` on every rank's thread; what all of them have read against `expected`.
Measured check_numbers(const std::vector<Device>& devices, const SyncGroupOptions& options,
                       const std::function<void(NumberRanks& all, int rank)>& work,
                       const Floats& expected) {
  auto all = std::make_unique<NumberRanks>(devices, options);
  ReplicaGroup threads(devices, all->group);
  try {
    threads.run([&](int rank) {
      all->attach(rank);
      work(*all, rank);
      all->group.at(rank).barrier("the end");
    });
  } catch (...) {
    if (threads.has_stuck_thread()) static_cast<void>(all.release());
    throw;
  }
  Measured errors{0, 0};
  for (const NumberRanks::Rank& rank : all->ranks) {
    errors = worst(errors,
                   difference(std::span<const float>(rank.read), std::span<const float>(expected)));
  }
  return errors;
}

Measured check_all_reduce(const std::vector<Device>& devices) {
  const auto ranks = static_cast<int>(devices.size());
  const auto sum = [](NumberRanks& all, int rank) {
    all.upload(rank, rank + 1);
    float* data = all.ranks[static_cast<std::size_t>(rank)].data().floats();
    all.group.all_reduce(rank)->start(data, NumberRanks::kCount);
    all.group.all_reduce(rank)->finish();
    all.download(rank, data);
  };
  return check_numbers(devices, exchange_options(TransportKind::kAuto, true), sum,
                       NumberRanks::numbers(ranks * (ranks + 1) / 2));
}

/// Every rank gets the statistics of all, each with its count, in the order of the ranks; twice.
Measured check_slots(const std::vector<Device>& devices, TransportKind transport) {
  constexpr int kRounds = 2;
  const auto ranks = static_cast<int>(devices.size());
  const auto number = [ranks](int round, int rank) { return 1 + round * ranks + rank; };
  const auto exchange = [&](NumberRanks& all, int rank) {
    NumberRanks::Rank& own = all.ranks[static_cast<std::size_t>(rank)];
    for (int round = 0; round < kRounds; ++round) {
      all.upload(rank, number(round, rank));
      const SyncCall call{"selftest", Direction::kForward, round, NumberRanks::kCount / 2};
      const StatSlot local{number(round, rank), own.data().floats()};
      for (const StatSlot& slot : all.group.at(rank).all_show(call, local)) {
        own.read.push_back(static_cast<float>(slot.count));
        all.download(rank, slot.data);
      }
      all.group.at(rank).barrier("the next round");
    }
  };
  Floats expected;
  for (int round = 0; round < kRounds; ++round) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Floats numbers = NumberRanks::numbers(number(round, rank));
      expected.push_back(static_cast<float>(number(round, rank)));
      expected.insert(expected.end(), numbers.begin(), numbers.end());
    }
  }
  return check_numbers(devices, exchange_options(transport, false), exchange, expected);
}

/// A pass through one layer is one exchange forward and one backward, whatever the devices.
Measured check_callbacks(const std::vector<Device>& devices) {
  const Shape shape{8, 3, 4, 3};
  Probe probe({.devices = devices, .model = one_norm, .norm = SyncBatchNorm(), .input = shape});
  const Floats values = normal_floats(shape.elements(), 1);
  probe.step(values, values);
  const auto count = [&](Direction direction) {
    return static_cast<float>(probe.sync_group().callbacks(direction));
  };
  const Floats counts{count(Direction::kForward), count(Direction::kBackward)};
  return difference(std::span<const float>(counts), std::span<const float>(Floats{1, 1}));
}

void add_exchange_checks(const SelftestDevices& devices, SelftestChecks& checks) {
  const auto add = [&](const std::string& name, const std::string& compared, double tolerance,
                       std::function<Measured()> run) {
    checks.push_back({"exchange", name, compared, tolerance, std::move(run)});
  };
  const std::vector<Device> several = devices.several();
  for (const TransportKind transport :
       {TransportKind::kHost, TransportKind::kEvent, TransportKind::kNccl}) {
    // NCCL takes GPUs that are each one's own.
    const std::vector<Device> on = transport == TransportKind::kNccl ? devices.given : several;
    if (!available(on, exchange_options(transport, false))) continue;
    add(concat("transport ", to_string(transport)), concat(kPlain, "; host's to the bit"),
        kRoundings, [on, transport] { return check_transport(on, transport); });
    add(concat("transport ", to_string(transport), ", slots"), "counts and integers, by rank", 0,
        [on, transport] { return check_slots(on, transport); });
  }
  const std::vector<Device> on = devices.gpus() ? devices.given : several;
  if (available(on, exchange_options(TransportKind::kAuto, true))) {
    add("all_reduce of gradients", "sums of integers", 0, [on] { return check_all_reduce(on); });
  }
  add("callbacks of a pass", "one forward, one backward", 0,
      [several] { return check_callbacks(several); });
}

}  // namespace

SelftestChecks batch_norm_checks(const SelftestDevices& devices) {
  const std::vector<Device> several = devices.several();
  SelftestChecks checks;
  const auto add = [&](const std::string& name, const std::string& compared, double tolerance,
                       std::function<Measured()> run) {
    checks.push_back({"batch_norm", name, compared, tolerance, std::move(run)});
  };
  for (const GroupCase& c : group_cases(devices)) {
    add(c.name, kPlain, kRoundings, [c] { return check_groups(c); });
  }
  add("ghost(4), one device = local, four", "outputs and input gradients", 0,
      [devices] { return check_ghost_is_local(devices); });
  add("variance of 10000 +- 1", "running_var, plain loops in double", 1e-4,
      [several] { return check_large_mean(several); });
  add("running statistics, momentum 0.3", "of every device, unbiased, plain loops", kRoundings,
      [several] { return check_running(several, 0.3, [](int) { return 0.3; }); });
  add("running statistics, cumulative", "of every device, unbiased, plain loops", kRoundings,
      [several] { return check_running(several, std::nullopt, [](int k) { return 1.0 / k; }); });
  add("evaluation by running statistics", "outputs, plain loops; no exchange", kRoundings,
      [several] { return check_fixed_statistics(several, SyncBatchNorm(), false); });
  add("frozen in training", "outputs, plain loops; no exchange", kRoundings,
      [several] { return check_fixed_statistics(several, FrozenBatchNorm(), true); });
  add_exchange_checks(devices, checks);
  return checks;
}

}  // namespace lockstep
