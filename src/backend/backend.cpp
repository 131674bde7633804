#include "lockstep/backend/backend.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <latch>
#include <thread>
#include <vector>

#include "backend/cpu_kernels.h"
#include "backend/cuda_backends.h"
#include "backend/host_threads.h"
#include "backend/operand_checks.h"
#include "backend/operands.h"
#include "core/cpu_quota.h"
#include "core/start_thread.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

CudaBackends& cuda_backends() {
  static CudaBackends backends;  // filled by register_cuda()
  return backends;
}

/// For backends whose operations are done when they return.
class FinishedReadback final : public Readback {
 public:
  FinishedReadback(Backend& backend, const Tensor& source, int slots)
      : backend_(backend),
        source_(source),
        copies_(static_cast<std::size_t>(slots), std::vector<std::byte>(dense_bytes(source))) {}

  void start(int slot) override {
    backend_.download(copies_.at(static_cast<std::size_t>(slot)).data(), source_);
    backend_.synchronize();
  }
  const void* wait(int slot) override { return copies_.at(static_cast<std::size_t>(slot)).data(); }

 private:
  Backend& backend_;
  const Tensor source_;
  std::vector<std::vector<std::byte>> copies_;  // [number]
};

class FinishedOffload final : public Offload {
 public:
  FinishedOffload(Backend& backend, std::span<const Tensor> tensors)
      : backend_(backend), tensors_(tensors.begin(), tensors.end()) {
    for (const Tensor& tensor : tensors) copies_.emplace_back(dense_bytes(tensor));
  }

  void send(int tensor) override {
    const auto index = static_cast<std::size_t>(tensor);
    backend_.download(copies_.at(index).data(), tensors_.at(index));
    backend_.synchronize();
  }
  void fetch(int tensor) override {
    const auto index = static_cast<std::size_t>(tensor);
    backend_.upload(tensors_.at(index), copies_.at(index).data());
  }
  void wait(int) override {}

 private:
  Backend& backend_;
  const std::vector<Tensor> tensors_;
  std::vector<std::vector<std::byte>> copies_;  // [tensor]
};

}  // namespace

std::unique_ptr<Offload> Backend::make_offload(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) check_transfer(tensor);
  return std::make_unique<FinishedOffload>(*this, tensors);
}

std::unique_ptr<Readback> Backend::make_readback(const Tensor& source, int slots) {
  check_transfer(source);
  return std::make_unique<FinishedReadback>(*this, source, slots);
}

// omp_get_num_procs() goes by the process's affinity, which mpirun, taskset and srun set
// (sched_getaffinity), as it was before OMP_PROC_BIND bound this thread to a single core.
namespace {

/// OMP_NUM_THREADS; 0: not set.
int asked_threads() {
  const char* asked = std::getenv("OMP_NUM_THREADS");
  return asked == nullptr ? 0 : std::max(std::atoi(asked), 0);
}

/// Of the process, as it was at the first call; 0: none.
double quota() {
  static const double quota = cpu_quota().value_or(0);
  return quota;
}

/// More threads than the quota has processors would take turns at standing still.
int threads_of_quota(int cores) {
  return quota() > 0 ? std::min(cores, static_cast<int>(std::ceil(quota()))) : cores;
}

}  // namespace

int host_threads() {
  const int cores = omp_get_num_procs();
  return asked_threads() > 0 ? std::min(cores, asked_threads()) : threads_of_quota(cores);
}

std::string describe_host_threads() {
  const int cores = omp_get_num_procs(), threads = host_threads();
  if (threads == cores) return concat(threads, ", as many as cores");
  const std::string of = concat(threads, " of ", cores, " cores, by ");
  if (asked_threads() > 0) return concat(of, "OMP_NUM_THREADS");
  return concat(of, "a quota of ", std::round(100 * quota()) / 100, " (cgroup)");
}

namespace {

/// The threads that compute for the calling one from now on. Where there are too few, OpenMP ends
/// the process: so others are tried first.
void start_team(int threads) {
  {
    std::latch all(threads);
    std::vector<std::jthread> tried;
    struct Leave {  // whoever waits, should one not be had
      std::latch& all;
      std::ptrdiff_t left;
      ~Leave() { all.count_down(left); }
    } leave{all, threads};
    for (int i = 1; i < threads; ++i) {
      tried.push_back(start_thread<std::jthread>("to compute", [&all] { all.wait(); }));
    }
  }
#pragma omp parallel num_threads(threads)
  {}
}

}  // namespace

std::unique_ptr<Backend> make_backend(const Device& device, int threads,
                                      const BackendOptions& options) {
  LOCKSTEP_CHECK(threads >= 1, "a backend needs at least 1 thread, got ", threads);
  if (device.kind == DeviceKind::kCpu) {
    start_team(threads);
    return cpu_kernels().make_backend(device, threads, options);
  }
  if (cuda_backends().make != nullptr) return cuda_backends().make(device, options);
  throw Error(concat(to_string(device),
                     ": there is no CUDA backend; use cpu:N (N virtual devices on the CPU), or a ",
                     "build with CUDA in which the program calls register_cuda()"));
}

int cuda_device_count() {
  return cuda_backends().device_count == nullptr ? 0 : cuda_backends().device_count();
}

std::vector<Diagnostic> probe_cuda() {
  if (cuda_backends().probe != nullptr) return cuda_backends().probe();
  return {{true, "CUDA", "this build is for the CPU only",
           "to use GPUs: install the CUDA Toolkit, cuDNN and NCCL, and build again"}};
}

void provide_cuda_backends(const CudaBackends& backends) { cuda_backends() = backends; }

// A text that is wrong on every machine stays that.
std::vector<Device> parse_devices(std::string_view text) {
  const int count = cuda_device_count();
  try {
    return parse_devices(text, count);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error&) {
    if (count > 0 || cuda_backends().why_no_device == nullptr) throw;
    const std::string why = cuda_backends().why_no_device();
    if (why.empty()) throw;
    throw Error(concat("devices '", text, "': ", why, "; use -d cpu:N for N virtual devices on ",
                       "the CPU meanwhile"));
  }
}

}  // namespace lockstep
