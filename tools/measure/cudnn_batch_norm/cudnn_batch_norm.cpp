// Times cuDNN's own BatchNorm on the work of `lockstep bench batch_norm`, as
// tools/measure/gpu_bench shows both: on one GPU fused with a ReLU, and with an addition and a ReLU
// (the functions cudnnBatchNormalization...Ex); on several the group BatchNorm of cuDNN's graph
// interface, whose statistics are those of all GPUs. That one has no ReLU, which Lockstep's has: it
// does less.
//
//   cudnn_batch_norm [--gpus N] [--iters N]      prints JSON
//
// A case that cuDNN does not take has its words in "not_supported"; "skipped" says why GPUs are not
// measured. "right": whether the batch's mean and deviation are what they must be.

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "app/bench/bench.h"
#include "core/json.h"
#include "tools/measure/cudnn_batch_norm/fused_batch_norm.h"
#include "tools/measure/cudnn_batch_norm/group_batch_norm.h"

namespace lockstep::gpu {
namespace {

Json case_of(const char* operation, const BatchNormWork& work) {
  return {{"operation", operation},
          {"dtype", to_string(work.dtype)},
          {"rows", work.rows()},
          {"channels", work.channels},
          {"tensor_bytes", work.tensor_bytes()}};
}

/// Adds what `measure` finds, or why cuDNN does not take the case.
void add_case(Json& cases, Json one, const std::function<void(Json&)>& measure) {
  try {
    measure(one);
  } catch (const NotSupported& error) {
    one["not_supported"] = error.what();
  }
  cases.push_back(std::move(one));
}

void add_times(Json& one, const BatchNormWork& work, int tensor_passes,
               const std::vector<double>& seconds) {
  const Percentiles times = percentiles(seconds);
  one["passes"] = passes_between_synchronizations(work.bytes);
  one["tensor_passes"] = tensor_passes;
  one["seconds"] = percentiles_json(times);
  one["gb_per_s"] = tensor_passes * work.tensor_bytes() / times.median / 1e9;
}

void measure_fused(Json& one, Gpu& gpu, const BatchNormWork& work, bool residual, int iters) {
  FusedBatchNorm norm(gpu, work, residual);
  norm.pass();
  gpu.synchronize();
  one["right"] = is_close(norm.moments(), expected_moments(work, 1));
  const int passes = passes_between_synchronizations(work.bytes);
  const auto seconds_of_one = [&] {
    return seconds_of([&] {
             for (int i = 0; i < passes; ++i) norm.pass();
             gpu.synchronize();
           }) /
           passes;
  };
  seconds_of_one();
  std::vector<double> seconds;
  for (int i = 0; i < iters; ++i) seconds.push_back(seconds_of_one());
  add_times(one, work, residual ? kResidualPasses : kBatchNormPasses, seconds);
}

/// Every GPU has a thread, which issues its passes: a GPU waits in a pass for that of the others.
/// A thread that fails ends the program, since their GPUs would wait for ever.
double seconds_of_passes(const std::vector<std::unique_ptr<GroupMember>>& members, int passes) {
  std::barrier start(static_cast<std::ptrdiff_t>(members.size()) + 1);
  std::vector<std::thread> threads;
  for (const auto& member : members) {
    threads.emplace_back([&, own = member.get()] {
      try {
        make_current(own->gpu().ordinal);
        start.arrive_and_wait();
        for (int i = 0; i < passes; ++i) own->pass();
        own->gpu().synchronize();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "cudnn_batch_norm: cuda:%d: %s\n", own->gpu().ordinal, error.what());
        std::_Exit(1);
      }
    });
  }
  start.arrive_and_wait();
  return seconds_of([&] {
    for (std::thread& thread : threads) thread.join();
  });
}

void measure_group(Json& one, const std::vector<std::unique_ptr<Gpu>>& gpus,
                   const BatchNormWork& work, int iters) {
  const int size = static_cast<int>(gpus.size());
  std::vector<std::unique_ptr<GroupMember>> members;
  for (int i = 0; i < size; ++i) {
    make_current(i);
    members.push_back(
        std::make_unique<GroupMember>(*gpus[static_cast<std::size_t>(i)], work, size));
  }
  for (const auto& member : members) member->bind(members);
  seconds_of_passes(members, 1);
  const Moments expected = expected_moments(work, size);
  one["right"] = std::all_of(members.begin(), members.end(), [&](const auto& member) {
    return is_close(member->moments(), expected);
  });
  const int passes = passes_between_synchronizations(work.bytes);
  seconds_of_passes(members, passes);
  std::vector<double> seconds;
  for (int i = 0; i < iters; ++i) seconds.push_back(seconds_of_passes(members, passes) / passes);
  add_times(one, work, kBatchNormPasses, seconds);
}

/// Why a group of so many GPUs is not measured; empty when it is.
std::string why_no_group(int size, int count) {
  if (count < size)
    return concat("it takes ", size, " GPUs, and ", count, count == 1 ? " is" : " are", " here");
  std::vector<int> ordinals(static_cast<std::size_t>(size));
  std::iota(ordinals.begin(), ordinals.end(), 0);
  if (!PeerAccess(ordinals).between_all(ordinals)) {
    return concat("GPUs 0 to ", size - 1, " do not reach each other's memory");
  }
  return "";
}

Json measure_one_gpu(int iters) {
  Json cases = Json::array();
  Gpu gpu(0);
  for (const BatchNormWork& work : gpu_batch_norm_work()) {
    for (const bool residual : {false, true}) {
      if (residual && !has_residual(work)) continue;
      add_case(cases, case_of(residual ? "batch_norm_add_relu" : "batch_norm_relu", work),
               [&](Json& one) { measure_fused(one, gpu, work, residual, iters); });
    }
  }
  return cases;
}

Json measure_several_gpus(int size, int iters) {
  Json cases = Json::array();
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (int i = 0; i < size; ++i) gpus.push_back(std::make_unique<Gpu>(i));
  for (const BatchNormWork& work : group_batch_norm_work()) {
    add_case(cases, case_of("group_batch_norm", work),
             [&](Json& one) { measure_group(one, gpus, work, iters); });
  }
  return cases;
}

void run(int gpus, int iters) {
  const std::size_t version = cudnnGetVersion();
  Json root = {{"bench", "cudnn_batch_norm"},
               {"cudnn", concat(version / 10000, ".", version / 100 % 100, ".", version % 100)},
               {"device", to_string(describe_device(0))},
               {"gpus", gpus}};
  const std::string why = why_no_group(gpus, device_count());
  if (why.empty()) {
    root["cases"] = gpus == 1 ? measure_one_gpu(iters) : measure_several_gpus(gpus, iters);
  } else {
    root["skipped"] = why;
  }
  std::printf("%s\n", root.dump(2).c_str());
}

/// Takes "--NAME N" pairs; false for anything else.
bool parse(int argc, char** argv, int& gpus, int& iters) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if ((name != "--gpus" && name != "--iters") || i + 1 == argc) return false;
    (name == "--gpus" ? gpus : iters) = std::atoi(argv[i + 1]);
  }
  return gpus >= 1 && iters >= 1;
}

}  // namespace
}  // namespace lockstep::gpu

int main(int argc, char** argv) {
  using namespace lockstep;
  int gpus = 1, iters = kBatchNormIters;
  if (!gpu::parse(argc, argv, gpus, iters)) {
    std::fprintf(stderr,
                 "cudnn_batch_norm: expected [--gpus N] [--iters N] with N of at least 1\n");
    return 2;
  }
  if (gpu::device_count() == 0) {
    const std::string why = gpu::why_no_device();
    std::fprintf(stderr, "cudnn_batch_norm: no GPU answers%s%s; run it on a machine with one\n",
                 why.empty() ? "" : ": ", why.c_str());
    return 1;
  }
  try {
    gpu::run(gpus, iters);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cudnn_batch_norm: %s\n", error.what());
    return 1;
  }
  return 0;
}
