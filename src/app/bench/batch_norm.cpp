// BatchNorm + ReLU alone. A training pass reads x for the moments, reads x and writes y (3 tensor
// sizes), reads x and dy for the sums, reads x and dy and writes dx (5): bandwidth counts these 8
// and nothing else. The yardstick is a copy in the same run, by all threads or by the device,
// counting 2 tensor sizes. On a GPU many passes lie between two synchronizations, so that the time
// of one is the device's, or that of its launches where it is small.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "app/bench/bench.h"
#include "compare/table.h"
#include "core/json.h"
#include "core/rng.h"
#include "lockstep/backend/backend.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

constexpr int kTensorPasses = 8;
constexpr int kBatchNormIters = 15;
constexpr std::int64_t kBatchNormChannels[] = {16, 64, 256};
constexpr DType kGpuTypes[] = {DType::kFloat32, DType::kBFloat16};
/// Below, about and beyond the L2 cache of a large GPU.
constexpr std::int64_t kGpuBytes[] = {4'000'000, 32'000'000, 64'000'000, 256'000'000};

struct Workload {
  DType dtype = DType::kFloat32;
  std::int64_t bytes = 0;  // of a tensor, at most
  std::int64_t channels = 0;
};

std::vector<Workload> workloads(DeviceKind kind) {
  std::vector<Workload> all;
  for (const std::int64_t channels : kBatchNormChannels) {
    if (kind == DeviceKind::kCpu) {
      all.push_back({DType::kFloat32, beyond_caches_bytes(), channels});
      continue;
    }
    for (const DType dtype : kGpuTypes) {
      for (const std::int64_t bytes : kGpuBytes) all.push_back({dtype, bytes, channels});
    }
  }
  return all;
}

/// Passes between two synchronizations; one on the CPU, where each is complete when it returns.
int passes_of(DeviceKind kind, std::int64_t bytes) {
  constexpr std::int64_t kBytesOfAll = std::int64_t{16} << 30;
  return kind == DeviceKind::kCpu
             ? 1
             : static_cast<int>(std::clamp<std::int64_t>(kBytesOfAll / bytes, 16, 1024));
}

/// The standard deviation of what fills x. As gamma it keeps the gradient's size from pass to pass,
/// which replaces it in place.
constexpr float kDeviation = 0.57735F;

/// Device memory of one case.
struct BatchNormCase {
  BatchNormCase(Backend& backend, const Workload& workload)
      : dtype(workload.dtype),
        shape{workload.bytes / static_cast<std::int64_t>(size_of(dtype)) / workload.channels,
              workload.channels},
        memory(backend.allocate(3 * (bytes() + kGapBytes))),
        small(backend.allocate(8 * static_cast<std::size_t>(workload.channels) * sizeof(float))) {
    auto* base = static_cast<std::byte*>(memory.data());
    x = Tensor(base, shape, dtype);
    y = Tensor(base + bytes() + kGapBytes, shape, dtype);
    grad = Tensor(base + 2 * (bytes() + kGapBytes), shape, dtype);
    fill(backend);
  }

  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
  float* row(int index) const {
    return static_cast<float*>(small.data()) + index * shape.channels();
  }

  void fill(Backend& backend) const {
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    Rng rng(0, RngPurpose::kTest, static_cast<std::uint64_t>(shape.channels()));
    for (float& value : values) value = rng.uniform(-1, 1);
    std::vector<std::uint16_t> halves;
    if (dtype == DType::kBFloat16) {
      for (const float value : values) {  // rounded towards zero: only the time matters
        halves.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
      }
    }
    const void* source = halves.empty() ? static_cast<const void*>(values.data()) : halves.data();
    backend.upload(x, source);
    backend.upload(grad, source);
    backend.synchronize();
    const std::vector<float> gamma(static_cast<std::size_t>(shape.channels()), kDeviation);
    backend.upload(Tensor(row(0), Shape{1, shape.channels()}), gamma.data());
    backend.synchronize();
  }

  DType dtype;
  Shape shape;
  Storage memory, small;
  Tensor x, y, grad;  // the gradient is replaced in place
};

void forward_backward(NormOperations& norms, const BatchNormCase& c) {
  const AffineParameters affine{c.row(0), c.row(1)};
  float* moments = c.row(2);
  float* sums = c.row(2);
  const BatchNormSaved saved{c.row(4)};
  const StatSlot slot{c.shape.rows(), moments};
  norms.batch_norm_moments(c.x, moments, 1);
  BatchNormForward forward;
  forward.x = c.x;
  forward.y = c.y;
  forward.affine = affine;
  forward.slots = {&slot, 1};
  forward.relu = true;
  forward.saved = saved;
  norms.batch_norm_forward(forward);
  BatchNormBackwardReduce reduce;
  reduce.x = c.x;
  reduce.grad_y = c.grad;
  reduce.affine = affine;
  reduce.saved = saved;
  reduce.relu = true;
  reduce.sums = sums;
  norms.batch_norm_backward_reduce(reduce);
  BatchNormBackwardApply apply;
  apply.x = c.x;
  apply.grad_y = c.grad;
  apply.affine = affine;
  apply.saved = saved;
  apply.relu = true;
  apply.slots = {&slot, 1};
  apply.grad_x = c.grad;
  norms.batch_norm_backward_apply(apply);
}

struct BatchNormTimes {
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, channels = 0;
  double bytes = 0;              // of a tensor
  int passes = 1;                // between two synchronizations
  Percentiles batch_norm, copy;  // seconds of one pass

  double bandwidth() const { return kTensorPasses * bytes / batch_norm.median / 1e9; }
  double copy_bandwidth() const { return 2 * bytes / copy.median / 1e9; }
  double ratio() const { return bandwidth() / copy_bandwidth(); }
};

BatchNormTimes measure(Backend& backend, const Workload& workload, int iters) {
  const BatchNormCase c(backend, workload);
  const int passes = passes_of(backend.device().kind, workload.bytes);
  const auto seconds_of_one = [&](const auto& pass) {
    return seconds_of([&] {
             for (int i = 0; i < passes; ++i) pass();
             backend.synchronize();
           }) /
           passes;
  };
  const auto both_passes = [&] { forward_backward(backend.norms(), c); };
  const auto copy_pass = [&] { copy_tensor(backend, c.x, c.y); };
  seconds_of_one(both_passes);
  seconds_of_one(copy_pass);
  std::vector<double> batch_norm, copy;
  for (int i = 0; i < iters; ++i) {  // alternating: both see the same machine
    copy.push_back(seconds_of_one(copy_pass));
    batch_norm.push_back(seconds_of_one(both_passes));
  }
  return {c.dtype, c.shape.rows(),          c.shape.channels(), static_cast<double>(c.bytes()),
          passes,  percentiles(batch_norm), percentiles(copy)};
}

void print_json(const Device& device, const std::vector<BatchNormTimes>& all) {
  Json cases = Json::array();
  for (const BatchNormTimes& times : all) {
    cases.push_back({{"dtype", to_string(times.dtype)},
                     {"rows", times.rows},
                     {"channels", times.channels},
                     {"tensor_bytes", times.bytes},
                     {"passes", times.passes},
                     {"seconds", percentiles_json(times.batch_norm)},
                     {"gb_per_s", times.bandwidth()},
                     {"copy_gb_per_s", times.copy_bandwidth()},
                     {"ratio", times.ratio()}});
  }
  const Json root = {{"bench", "batch_norm"},
                     {"device", to_string(device)},
                     {"threads", threads_per_replica(1)},
                     {"tensor_passes", kTensorPasses},
                     {"cases", cases}};
  fmt::print("{}\n", root.dump(2));
}

void print_table(const Device& device, const std::vector<BatchNormTimes>& all) {
  fmt::print("BatchNorm + ReLU, forward and backward, on {} with {} host threads\n\n",
             to_string(device), threads_per_replica(1));
  Table table{{"rows x channels", "type", "MB per tensor", "ms", "GB/s", "copy GB/s", "ratio"}, {}};
  for (const BatchNormTimes& times : all) {
    Percentiles ms = times.batch_norm;
    ms.p10 *= 1000, ms.median *= 1000, ms.p90 *= 1000;
    table.rows.push_back({fmt::format("{} x {}", times.rows, times.channels),
                          to_string(times.dtype), format_number(times.bytes / 1e6, 0),
                          format_percentiles(ms, device.kind == DeviceKind::kCpu ? 1 : 3),
                          format_number(times.bandwidth(), 1),
                          format_number(times.copy_bandwidth(), 1),
                          format_number(times.ratio(), 2)});
  }
  fmt::print("{}", to_markdown(table));
}

}  // namespace

int bench_batch_norm(const BenchArguments& arguments) {
  const Device device = bench_devices(arguments).front();
  const std::unique_ptr<Backend> backend = make_backend(device, threads_per_replica(1));
  const int iters = arguments.iters > 0 ? arguments.iters : kBatchNormIters;
  std::vector<BatchNormTimes> all;
  for (const Workload& workload : workloads(device.kind)) {
    all.push_back(measure(*backend, workload, iters));
  }
  arguments.common.json ? print_json(device, all) : print_table(device, all);
  return kExitDone;
}

}  // namespace lockstep
