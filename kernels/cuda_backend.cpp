#include "kernels/cuda_backend.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "backend/operand_checks.h"
#include "backend/required_operands.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/host_copies.h"
#include "kernels/operations/image_sums.h"
#include "kernels/operations/launchers.h"

namespace lockstep::gpu {
namespace {

constexpr int kFirstWithBFloat16 = 8;  // compute capability: Ampere

void check_operands(const ConvGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_conv2d(geometry, x.shape, y.shape);
  check_same_type("conv2d", {&x, &y});
}

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

CudaConvolutions::CudaConvolutions(const Device& device, const Context& context,
                                   ConvolutionMemory memory, const BackendOptions& options)
    : device_(device),
      context_(context),
      compute_capability_(describe_device(device.ordinal).major),
      cudnn_(device.ordinal, context, std::move(memory),
             {.tf32 = options.tf32,
              .by_image = options.sums_by_image,
              .choices = Autotuner::default_file()}) {}

void CudaConvolutions::prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                      bool backward, bool grad_input) {
  if (input.batch() == 0) return;
  if (dtype == DType::kBFloat16 && compute_capability_ < kFirstWithBFloat16) {
    throw ConfigError(concat(to_string(device_), " has compute capability ", compute_capability_,
                             ".x and no bf16; use run.precision = \"fp16\" or \"fp32\""));
  }
  context_.enter();
  cudnn_.prepare(geometry, input, dtype, backward, grad_input);
}

void CudaConvolutions::prepack_conv2d_weights(std::span<const ConvWeights> weights) {
  check_prepack_conv2d_weights(weights);
  context_.enter();
  cudnn_.prepack(weights);
}

void CudaConvolutions::conv2d_forward(const ConvGeometry& geometry, const Tensor& x,
                                      const float* weight, const float* bias, const Tensor& y) {
  check_conv2d_forward(x, weight, y);
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, y);
  context_.enter();
  cudnn_.forward(geometry, x, weight, y);
  if (bias != nullptr) add_bias(context_, bias, y);
}

void CudaConvolutions::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                            const float* weight, const Tensor& grad_x) {
  check_conv2d_backward_data(grad_y, weight, grad_x);
  if (grad_x.shape.batch() == 0) return;
  check_operands(geometry, grad_x, grad_y);
  context_.enter();
  cudnn_.backward_data(geometry, grad_y, weight, grad_x);
}

void CudaConvolutions::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                               const Tensor& grad_y, float* grad_weight,
                                               float* grad_bias) {
  check_conv2d_backward_weights(x, grad_y, grad_weight);
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, grad_y);
  context_.enter();
  // All images at once, or each by itself.
  const std::int64_t parts = context_.sums_by_image ? x.shape.batch() : 1;
  const std::int64_t images = x.shape.batch() / parts;
  const auto part_of = [images](const Tensor& tensor, std::int64_t part) {
    return tensor.sample_range(part * images, images);
  };
  add_in_tree(context_, parts, geometry.weight_elements(), grad_weight,
              [&](std::int64_t part, float* sum) {
                cudnn_.backward_weights(geometry, part_of(x, part), part_of(grad_y, part), sum);
              });
  if (grad_bias == nullptr) return;
  add_in_tree(
      context_, parts, geometry.out_channels, grad_bias,
      [&](std::int64_t part, float* sum) { bias_gradient(context_, part_of(grad_y, part), sum); });
}

void CudaConvolutions::finish_conv2d_gradients() {
  context_.enter();
  cudnn_.finish_gradients();
}

void CudaConvolutions::conv2d_inference(const ConvGeometry&, const Tensor&, const float*,
                                        const float*, const BatchNormInference&) {
  throw Error("no convolution is normalised on " + to_string(device_));
}

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
                    options) {}

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
