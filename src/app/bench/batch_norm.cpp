// BatchNorm + ReLU alone, and on a GPU with a residual, too. Bandwidth counts the tensor sizes that
// a training pass cannot do without (batch_norm_work.h) and nothing else. The yardstick is a copy
// in the same run, by all threads or by the device, counting 2 tensor sizes. On a GPU many passes
// lie between two synchronizations. Several GPUs normalise by the statistics of all, recorded where
// their transport can record.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "app/bench/batch_norm_work.h"
#include "app/bench/bench.h"
#include "compare/table.h"
#include "core/json.h"
#include "lockstep/backend/backend.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/sync/sync_group.h"
#include "step/replica_group.h"
#include "sync/transport.h"

namespace lockstep {
namespace {

std::vector<BatchNormWork> work_of(DeviceKind kind, bool several) {
  if (kind == DeviceKind::kCuda) return several ? group_batch_norm_work() : gpu_batch_norm_work();
  std::vector<BatchNormWork> all;
  for (const std::int64_t channels : kBatchNormChannels) {
    all.push_back({DType::kFloat32, beyond_caches_bytes(), channels});
  }
  return all;
}

/// Passes between two synchronizations; one on the CPU, where each is complete when it returns.
int passes_of(DeviceKind kind, std::int64_t bytes) {
  return kind == DeviceKind::kCpu ? 1 : passes_between_synchronizations(bytes);
}

/// Device memory of one case.
struct BatchNormCase {
  BatchNormCase(Backend& backend, const BatchNormWork& work, bool with_residual)
      : dtype(work.dtype),
        shape{work.rows(), work.channels},
        memory(backend.allocate((with_residual ? 5 : 3) * (bytes() + kGapBytes))),
        small(backend.allocate(13 * static_cast<std::size_t>(work.channels) * sizeof(float))) {
    auto* base = static_cast<std::byte*>(memory.data());
    const auto next = [&] {
      const Tensor tensor(base, shape, dtype);
      base += bytes() + kGapBytes;
      return tensor;
    };
    x = next(), y = next(), grad = next();
    if (with_residual) residual = next(), grad_residual = next();
    fill(backend);
  }

  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
  float* row(int index) const {
    return static_cast<float*>(small.data()) + index * shape.channels();
  }
  AffineParameters affine() const { return {row(0), row(1)}; }
  BatchNormSaved saved() const { return {row(2)}; }
  /// Used in turn: other GPUs may read those of the pass before.
  float* moments(int pass) const { return row(5 + pass % 2 * 2); }
  float* sums(int pass) const { return row(9 + pass % 2 * 2); }

  void fill(Backend& backend) const {
    const std::vector<float> values = batch_norm_values(shape.elements(), shape.channels());
    std::vector<std::uint16_t> narrow;
    if (dtype != DType::kFloat32) narrow = narrow_values(values, dtype);
    const void* source = narrow.empty() ? static_cast<const void*>(values.data()) : narrow.data();
    for (const Tensor& tensor : {x, grad, residual}) {
      if (tensor.data != nullptr) backend.upload(tensor, source);
    }
    backend.synchronize();
    const std::vector<float> gamma(static_cast<std::size_t>(shape.channels()), kBatchNormDeviation);
    backend.upload(Tensor(row(0), Shape{1, shape.channels()}), gamma.data());
    backend.synchronize();
  }

  DType dtype;
  Shape shape;
  Storage memory, small;
  Tensor x, y, grad;  // the gradient is replaced in place
  Tensor residual, grad_residual;
};

/// How statistics become those of all devices: one alone has its own.
using ShowSlots = std::function<std::span<const StatSlot>(Direction, const StatSlot& local)>;

struct Pass {
  int index = 0;
  bool residual = false;
  const ShowSlots* exchange = nullptr;  // null: one device
};

std::span<const StatSlot> slots_of(const Pass& pass, Direction direction, const StatSlot& local) {
  return pass.exchange == nullptr ? std::span(&local, 1) : (*pass.exchange)(direction, local);
}

void forward_backward(NormOperations& norms, const BatchNormCase& c, const Pass& pass) {
  float* moments = c.moments(pass.index);
  float* sums = c.sums(pass.index);
  const Tensor mask = pass.residual ? c.y : Tensor();
  norms.batch_norm_moments(c.x, moments, 1);
  const StatSlot local{c.shape.rows(), moments};
  BatchNormForward forward;
  forward.x = c.x;
  forward.y = c.y;
  if (pass.residual) forward.residual = c.residual;
  forward.affine = c.affine();
  forward.slots = slots_of(pass, Direction::kForward, local);
  forward.relu = true;
  forward.saved = c.saved();
  norms.batch_norm_forward(forward);
  BatchNormBackwardReduce reduce;
  reduce.x = c.x;
  reduce.grad_y = c.grad;
  reduce.y = mask;
  reduce.affine = c.affine();
  reduce.saved = c.saved();
  reduce.relu = true;
  reduce.sums = sums;
  norms.batch_norm_backward_reduce(reduce);
  const StatSlot local_sums{c.shape.rows(), sums};
  BatchNormBackwardApply apply;
  apply.x = c.x;
  apply.grad_y = c.grad;
  apply.y = mask;
  apply.affine = c.affine();
  apply.saved = c.saved();
  apply.relu = true;
  apply.slots = slots_of(pass, Direction::kBackward, local_sums);
  apply.grad_x = c.grad;
  if (pass.residual) apply.grad_residual = c.grad_residual;
  norms.batch_norm_backward_apply(apply);
}

struct BatchNormTimes {
  BatchNormWork work;
  int passes = 1;                       // between two synchronizations
  Percentiles batch_norm, copy;         // seconds of one pass
  std::optional<Percentiles> residual;  // the same with a residual
  bool recorded = false;                // several GPUs: whether passes are replayed

  double bandwidth() const {
    return kBatchNormPasses * work.tensor_bytes() / batch_norm.median / 1e9;
  }
  double residual_bandwidth() const {
    return kResidualPasses * work.tensor_bytes() / residual->median / 1e9;
  }
  double copy_bandwidth() const { return 2 * work.tensor_bytes() / copy.median / 1e9; }
  double ratio() const { return bandwidth() / copy_bandwidth(); }
};

BatchNormTimes measure(Backend& backend, const BatchNormWork& work, int iters) {
  const DeviceKind kind = backend.device().kind;
  const bool with_residual = kind == DeviceKind::kCuda && has_residual(work);
  const BatchNormCase c(backend, work, with_residual);
  const int passes = passes_of(kind, work.bytes);
  const auto seconds_of_one = [&](const auto& pass) {
    return seconds_of([&] {
             for (int i = 0; i < passes; ++i) pass();
             backend.synchronize();
           }) /
           passes;
  };
  const auto both_passes = [&] { forward_backward(backend.norms(), c, {}); };
  const auto residual_passes = [&] { forward_backward(backend.norms(), c, {.residual = true}); };
  const auto copy_pass = [&] { copy_tensor(backend, c.x, c.y); };
  seconds_of_one(both_passes);
  if (with_residual) seconds_of_one(residual_passes);
  seconds_of_one(copy_pass);
  std::vector<double> batch_norm, residual, copy;
  for (int i = 0; i < iters; ++i) {  // alternating: all see the same machine
    copy.push_back(seconds_of_one(copy_pass));
    batch_norm.push_back(seconds_of_one(both_passes));
    if (with_residual) residual.push_back(seconds_of_one(residual_passes));
  }
  BatchNormTimes times{work,         passes, percentiles(batch_norm), percentiles(copy),
                       std::nullopt, false};
  if (with_residual) times.residual = percentiles(residual);
  return times;
}

/// Several GPUs, each with a batch of its own, which normalise by the statistics of all.
class GroupedGpus {
 public:
  explicit GroupedGpus(std::span<const Device> devices)
      : communicators_(devices), ranks_(devices.size()), group_(devices, communicators_) {
    group_.run([&](int rank) {
      own(rank).backend = make_backend(devices[static_cast<std::size_t>(rank)], 1);
      communicators_.at(rank).attach(*own(rank).backend);
    });
  }

  BatchNormTimes measure(const BatchNormWork& work, int iters) {
    group_.run([&](int rank) {
      own(rank).memory.reset();
      own(rank).memory.emplace(*own(rank).backend, work, false);
      issue(rank);
      own(rank).backend->synchronize();
    });
    const bool recorded = communicators_.recorder(0) != nullptr;
    if (recorded) {
      group_.run([&](int rank) { communicators_.recorder(rank)->record([&] { issue(rank); }); });
    }
    const int rounds = passes_of(DeviceKind::kCuda, work.bytes) / kPassesOfRound;
    const auto seconds_of_one = [&](const std::function<void(int rank)>& round) {
      return seconds_of([&] {
               group_.run([&](int rank) {
                 for (int i = 0; i < rounds; ++i) round(rank);
                 own(rank).backend->synchronize();
               });
             }) /
             (rounds * kPassesOfRound);
    };
    const auto batch_norm_round = [&](int rank) {
      recorded ? communicators_.recorder(rank)->replay() : issue(rank);
    };
    const auto copy_round = [&](int rank) {
      const BatchNormCase& c = *own(rank).memory;
      for (int i = 0; i < kPassesOfRound; ++i) copy_tensor(*own(rank).backend, c.x, c.y);
    };
    seconds_of_one(batch_norm_round);
    seconds_of_one(copy_round);
    std::vector<double> batch_norm, copy;
    for (int i = 0; i < iters; ++i) {
      copy.push_back(seconds_of_one(copy_round));
      batch_norm.push_back(seconds_of_one(batch_norm_round));
    }
    return {
        work,    rounds * kPassesOfRound, percentiles(batch_norm), percentiles(copy), std::nullopt,
        recorded};
  }

 private:
  struct Rank {
    std::unique_ptr<Backend> backend;
    std::optional<BatchNormCase> memory;
  };

  static constexpr int kPassesOfRound = 16;  // of a recording

  Rank& own(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void issue(int rank) {
    Communicator& communicator = communicators_.at(rank);
    for (int i = 0; i < kPassesOfRound; ++i) {
      const ShowSlots exchange = [&](Direction direction, const StatSlot& local) {
        return communicator.all_show({"bench", direction, i, own(rank).memory->shape.channels()},
                                     local);
      };
      forward_backward(own(rank).backend->norms(), *own(rank).memory,
                       {.index = i, .exchange = &exchange});
    }
    communicator.barrier("the end of the passes");
  }

  SyncGroup communicators_;
  std::vector<Rank> ranks_;
  ReplicaGroup group_;
};

void print_json(std::span<const Device> devices, const std::vector<BatchNormTimes>& all) {
  Json cases = Json::array();
  for (const BatchNormTimes& times : all) {
    Json one = {{"dtype", to_string(times.work.dtype)},
                {"rows", times.work.rows()},
                {"channels", times.work.channels},
                {"tensor_bytes", times.work.tensor_bytes()},
                {"passes", times.passes},
                {"seconds", percentiles_json(times.batch_norm)},
                {"gb_per_s", times.bandwidth()},
                {"copy_gb_per_s", times.copy_bandwidth()},
                {"ratio", times.ratio()}};
    if (times.residual) {
      one["residual"] = {{"seconds", percentiles_json(*times.residual)},
                         {"tensor_passes", kResidualPasses},
                         {"gb_per_s", times.residual_bandwidth()}};
    }
    if (devices.size() > 1) one["recorded"] = times.recorded;
    cases.push_back(std::move(one));
  }
  const Json root = {{"bench", "batch_norm"},
                     {"device", to_string(devices.front())},
                     {"devices", devices.size()},
                     {"threads", threads_per_replica(1)},
                     {"tensor_passes", kBatchNormPasses},
                     {"cases", cases}};
  fmt::print("{}\n", json_text(root, 2));
}

void print_table(std::span<const Device> devices, const std::vector<BatchNormTimes>& all) {
  const Device& device = devices.front();
  const std::string others =
      devices.size() > 1 ? fmt::format(" and {} more GPUs, each", devices.size() - 1) : "";
  fmt::print("BatchNorm + ReLU, forward and backward, on {}{} with {} host threads\n\n",
             to_string(device), others, threads_per_replica(1));
  const bool residual = std::ranges::any_of(
      all, [](const BatchNormTimes& times) { return times.residual.has_value(); });
  Table table{{"rows x channels", "type", "MB per tensor", "ms", "GB/s", "copy GB/s", "ratio"}, {}};
  if (residual) table.header.emplace_back("GB/s with a residual");
  for (const BatchNormTimes& times : all) {
    Percentiles ms = times.batch_norm;
    ms.p10 *= 1000, ms.median *= 1000, ms.p90 *= 1000;
    table.rows.push_back(
        {fmt::format("{} x {}", times.work.rows(), times.work.channels),
         to_string(times.work.dtype), format_number(times.work.tensor_bytes() / 1e6, 0),
         format_percentiles(ms, device.kind == DeviceKind::kCpu ? 1 : 3),
         format_number(times.bandwidth(), 1), format_number(times.copy_bandwidth(), 1),
         format_number(times.ratio(), 2)});
    if (residual) {
      table.rows.back().push_back(times.residual ? format_number(times.residual_bandwidth(), 1)
                                                 : "-");
    }
  }
  fmt::print("{}", to_markdown(table));
}

}  // namespace

int bench_batch_norm(const BenchArguments& arguments) {
  std::vector<Device> devices = bench_devices(arguments);
  // Virtual devices of the CPU share its bandwidth: one has all threads.
  if (devices.front().kind == DeviceKind::kCpu) devices.resize(1);
  const int iters = arguments.iters > 0 ? arguments.iters : kBatchNormIters;
  const auto all_work = work_of(devices.front().kind, devices.size() > 1);
  std::vector<BatchNormTimes> all;
  if (devices.size() > 1) {
    GroupedGpus gpus(devices);
    for (const BatchNormWork& work : all_work) all.push_back(gpus.measure(work, iters));
  } else {
    const auto backend = make_backend(devices.front(), threads_per_replica(1));
    for (const BatchNormWork& work : all_work) all.push_back(measure(*backend, work, iters));
  }
  arguments.common.json ? print_json(devices, all) : print_table(devices, all);
  return kExitDone;
}

}  // namespace lockstep
