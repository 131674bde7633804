#include "kernels/cuda_backend.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "backend/operands.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/host_copies.h"

namespace lockstep::gpu {
namespace {

/// Whether kernels may start while the ones before them end. LOCKSTEP_DEPENDENT_LAUNCH=0 says no,
/// to tell what goes wrong in such launches from what goes wrong elsewhere.
bool launches_dependently(const DeviceDescription& device) {
  const char* wanted = std::getenv("LOCKSTEP_DEPENDENT_LAUNCH");
  return device.major >= 9 && (wanted == nullptr || std::string_view(wanted) != "0");
}

/// Of a device that is there.
int checked_ordinal(const Device& device) {
  LOCKSTEP_CHECK(device.kind == DeviceKind::kCuda, "expected a CUDA device, got ",
                 to_string(device));
  const int count = device_count();
  if (device.ordinal >= 0 && device.ordinal < count) return device.ordinal;
  if (const std::string why = why_no_device(); !why.empty()) {
    throw Error(concat(to_string(device), ": ", why));
  }
  throw Error(concat(to_string(device), ": is not there (", count,
                     " CUDA devices answer); use one that is, or -d cpu:N (N virtual devices on",
                     " the CPU)"));
}

}  // namespace

CudaBackend::CudaBackend(const Device& device, const BackendOptions& options)
    : device_(device),
      stream_(checked_ordinal(device)),
      staging_stream_(device.ordinal),
      done_(device.ordinal, Event::Kind::kHost),
      staged_(device.ordinal),
      taken_(device.ordinal),
      memory_(device.ordinal, *waits(), stream_.get()),
      counters_(memory_.allocate(Context::kCounters * sizeof(unsigned))),
      kernel_scratch_(memory_, stream_.get()),
      sums_(memory_, stream_.get()),
      convolution_scratch_(memory_, stream_.get()),
      uploads_(device.ordinal, *waits(), stream_.get()),
      staging_uploads_(device.ordinal, *waits(), staging_stream_.get()),
      // No convolution is under way while the optimizer is.
      optimizer_(device.ordinal, context(),
                 [this](std::size_t bytes) { return convolution_scratch_.get(bytes); }),
      convolutions_(device, prepared_context(options.sums_by_image),
                    {[this](std::size_t bytes) { return memory_.allocate(bytes); },
                     [this](std::size_t bytes) { return convolution_scratch_.get(bytes); }},
                    options.tf32) {}

const Context& CudaBackend::prepared_context(bool sums_by_image) {
  Context& own = context();
  own.stream = stream_.get();
  const DeviceDescription description = describe_device(device_.ordinal);
  own.multiprocessors = description.multiprocessors;
  own.dependent_launches = launches_dependently(description);
  own.counters = static_cast<unsigned*>(counters_.data());
  own.scratch = [this](std::size_t bytes) { return kernel_scratch_.get(bytes); };
  own.sums = [this](std::size_t bytes) { return sums_.get(bytes); };
  own.sums_by_image = sums_by_image;
  own.enter = [ordinal = device_.ordinal] { make_current(ordinal); };
  return own;
}

CudaBackend::~CudaBackend() {
  static_cast<void>(cudaSetDevice(device_.ordinal));
  static_cast<void>(cudaStreamSynchronize(staging_stream_.get()));
  static_cast<void>(cudaStreamSynchronize(stream_.get()));
}

void CudaBackend::upload(const Tensor& destination, const void* source) {
  check_transfer(destination, source);
  make_current(device_.ordinal);
  uploads_.upload(destination.data, source, dense_bytes(destination));
  follow_no_kernel();
}

void CudaBackend::download(void* destination, const Tensor& source) {
  check_transfer(source, destination);
  const std::size_t bytes = dense_bytes(source);
  if (bytes == 0) return;
  make_current(device_.ordinal);
  const HostWaits::Wait wait(*waits());  // where the destination is not pinned
  follow_no_kernel();
  check_cuda(
      cudaMemcpyAsync(destination, source.data, bytes, cudaMemcpyDeviceToHost, stream_.get()),
      "cudaMemcpyAsync from the device");
}

void CudaBackend::stage(const Tensor& staged, const void* source) {
  check_transfer(staged, source);
  make_current(device_.ordinal);
  taken_.make_wait(staging_stream_.get());
  staging_uploads_.upload(staged.data, source, dense_bytes(staged));
  staged_.record(staging_stream_.get());
}

void CudaBackend::take_staged(const Tensor& staged, const Tensor& destination) {
  make_current(device_.ordinal);
  wait_for(staged_);
  copy(staged, destination, false);
  taken_.record(stream_.get());
}

std::unique_ptr<Readback> CudaBackend::make_readback(const Tensor& source, int slots) {
  return std::make_unique<PinnedReadback>(
      device_.ordinal, *waits(), stream_.get(), [this] { follow_no_kernel(); }, source, slots);
}

std::unique_ptr<Offload> CudaBackend::make_offload(std::span<const Tensor> tensors) {
  return std::make_unique<PinnedOffload>(
      device_.ordinal, stream_.get(), [this](const Event& event) { wait_for(event); }, tensors);
}

void CudaBackend::synchronize() {
  make_current(device_.ordinal);
  done_.record(stream_.get());
  waits()->wait_for(done_);
}

}  // namespace lockstep::gpu
