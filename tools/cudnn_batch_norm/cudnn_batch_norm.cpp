// Times cuDNN's own BatchNorm on the work of `lockstep bench batch_norm`, as tools/gpu_bench shows
// both: on one GPU fused with a ReLU, and with an addition and a ReLU (the functions
// cudnnBatchNormalization...Ex); on several the group BatchNorm of cuDNN's graph interface, whose
// statistics are those of all GPUs. That one has no ReLU, which Lockstep's has: it does less.
//
//   cudnn_batch_norm [--gpus N] [--iters N]      prints JSON
//
// A case that cuDNN does not take has its words in "not_supported"; "skipped" says why GPUs are not
// measured. "right": whether the batch's mean and deviation are what they must be.

#include <cudnn.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/bench/batch_norm_work.h"
#include "app/bench/bench.h"
#include "core/json.h"
#include "kernels/cudnn/check_cudnn.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/device.h"
#include "tools/cudnn_batch_norm/group_graph.h"

namespace lockstep::gpu {
namespace {

constexpr double kEps = 1e-5;

/// What cuDNN does not take; the text is its own.
struct NotSupported : Error {
  using Error::Error;
};

/// The functions say BAD_PARAM for a type that they do not take.
void check_supported(cudnnStatus_t status, const char* what) {
  const auto category = CUDNN_STATUS_CATEGORY(status);
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM) {
    throw NotSupported(concat(what, ": ", describe_cudnn(status)));
  }
  check_cudnn(status, what);
}

struct FreeDevice {
  void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
};
using DeviceBuffer = std::unique_ptr<void, FreeDevice>;

/// Of the current device, zeroed.
DeviceBuffer allocate(std::size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, std::max<std::size_t>(bytes, 16)), "cudaMalloc");
  DeviceBuffer buffer(memory);
  check_cuda(cudaMemset(memory, 0, bytes), "cudaMemset");
  return buffer;
}

struct DestroyHandle {
  void operator()(cudnnContext* handle) const { cudnnDestroy(handle); }
};
struct DestroyTensor {
  void operator()(cudnnTensorStruct* tensor) const { cudnnDestroyTensorDescriptor(tensor); }
};
struct DestroyActivation {
  void operator()(cudnnActivationStruct* activation) const {
    cudnnDestroyActivationDescriptor(activation);
  }
};

/// A GPU with cuDNN.
struct Gpu {
  explicit Gpu(int number) : ordinal(number), stream(number) {
    const DeviceGuard guard(number);
    cudnnHandle_t made = nullptr;
    check_cudnn(cudnnCreate(&made), "cudnnCreate");
    handle.reset(made);
    check_cudnn(cudnnSetStream(made, stream.get()), "cudnnSetStream");
  }

  ~Gpu() {
    const DeviceGuard guard(ordinal);
    handle.reset();
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void synchronize() const { check_cuda(cudaStreamSynchronize(stream.get()), "waiting"); }

  int ordinal;
  StreamOwner stream;
  std::unique_ptr<cudnnContext, DestroyHandle> handle;
};

/// Images of such a number of rows, as square as it allows.
CudnnExtents extents_of(const BatchNormWork& work) {
  auto height = static_cast<std::int64_t>(std::sqrt(static_cast<double>(work.rows())));
  while (work.rows() % height != 0) --height;
  return {1, work.channels, height, work.rows() / height};
}

/// Mean and 1 / deviation of the first channel.
struct Moments {
  double mean = 0, invstd = 0;
};

/// What is added to the values of each GPU of a group, so that the batches differ.
float shift_of(int gpu) { return 0.25F * static_cast<float>(gpu % 4); }

/// Of the batches of `gpus`.
Moments expected_moments(const BatchNormWork& work, int gpus) {
  const std::int64_t count = work.rows() * work.channels;
  const std::vector<float> values =
      batch_norm_values(std::min(count, kValuesPeriod), work.channels);
  double sum = 0, squares = 0;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    for (std::int64_t i = 0; i < count; i += work.channels) {
      const double value = values[static_cast<std::size_t>(i % kValuesPeriod)] + shift_of(gpu);
      sum += value;
      squares += value * value;
    }
  }
  const double rows = static_cast<double>(work.rows()) * gpus;
  const double mean = sum / rows;
  return {mean, 1 / std::sqrt(squares / rows - mean * mean + kEps)};
}

bool is_close(const Moments& a, const Moments& b) {
  return std::abs(a.mean - b.mean) < 1e-3 && std::abs(a.invstd / b.invstd - 1) < 1e-3;
}

/// Memory of one case on one GPU.
struct Memory {
  Memory(const BatchNormWork& work, float shift, bool with_residual)
      : bytes(static_cast<std::size_t>(work.tensor_bytes())),
        channels(static_cast<std::size_t>(work.channels)),
        x(allocate(bytes)),
        y(allocate(bytes)),
        grad_y(allocate(bytes)),
        grad_x(allocate(bytes)),
        residual(allocate(with_residual ? bytes : 0)),
        grad_residual(allocate(with_residual ? bytes : 0)),
        small(allocate(kRows * channels * sizeof(float))) {
    const std::int64_t count = work.rows() * work.channels;
    std::vector<float> values = batch_norm_values(std::min(count, kValuesPeriod), work.channels);
    for (float& value : values) value += shift;
    fill(x, values, work.dtype);
    fill(grad_y, values, work.dtype);
    if (with_residual) fill(residual, values, work.dtype);
    const std::vector<float> scale(channels, kBatchNormDeviation);
    check_cuda(cudaMemcpy(row(kScale), scale.data(), channels * sizeof(float), cudaMemcpyDefault),
               "filling the scale");
  }

  enum Row { kScale, kBias, kMean, kInvStd, kGradScale, kGradBias, kRows };
  float* row(Row index) const { return static_cast<float*>(small.get()) + index * channels; }

  void fill(const DeviceBuffer& to, const std::vector<float>& values, DType dtype) const {
    std::vector<std::uint16_t> narrow;
    if (dtype != DType::kFloat32) narrow = narrow_values(values, dtype);
    const void* from = narrow.empty() ? static_cast<const void*>(values.data()) : narrow.data();
    const std::size_t period = values.size() * size_of(dtype);
    for (std::size_t begin = 0; begin < bytes; begin += period) {
      check_cuda(cudaMemcpy(static_cast<std::byte*>(to.get()) + begin, from,
                            std::min(period, bytes - begin), cudaMemcpyDefault),
                 "filling a tensor");
    }
  }

  /// What the forward pass has found.
  Moments moments() const {
    float mean = 0, invstd = 0;
    check_cuda(cudaMemcpy(&mean, row(kMean), sizeof mean, cudaMemcpyDefault), "reading the mean");
    check_cuda(cudaMemcpy(&invstd, row(kInvStd), sizeof invstd, cudaMemcpyDefault),
               "reading the deviation");
    return {mean, invstd};
  }

  std::size_t bytes, channels;
  DeviceBuffer x, y, grad_y, grad_x, residual, grad_residual, small;
};

/// BatchNorm fused with a ReLU, and an addition before it, by the functions made for that.
class FusedBatchNorm {
 public:
  FusedBatchNorm(const Gpu& gpu, const BatchNormWork& work, bool residual)
      : gpu_(gpu),
        operations_(residual ? CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION
                             : CUDNN_BATCHNORM_OPS_BN_ACTIVATION),
        memory_(work, 0, residual),
        tensor_(make_tensor()),
        per_channel_(make_tensor()) {
    const CudnnExtents e = extents_of(work);
    check_supported(
        cudnnSetTensor4dDescriptor(tensor_.get(), CUDNN_TENSOR_NHWC, cudnn_type(work.dtype),
                                   static_cast<int>(e[0]), static_cast<int>(e[1]),
                                   static_cast<int>(e[2]), static_cast<int>(e[3])),
        "cudnnSetTensor4dDescriptor");
    check_supported(cudnnDeriveBNTensorDescriptor(per_channel_.get(), tensor_.get(), kMode),
                    "cudnnDeriveBNTensorDescriptor");
    cudnnActivationDescriptor_t activation = nullptr;
    check_cudnn(cudnnCreateActivationDescriptor(&activation), "cudnnCreateActivationDescriptor");
    activation_.reset(activation);
    check_cudnn(
        cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0),
        "cudnnSetActivationDescriptor");
    if (residual) z_ = tensor_.get();
    std::size_t forward = 0, backward = 0;
    check_supported(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
                        gpu.handle.get(), kMode, operations_, tensor_.get(), z_, tensor_.get(),
                        per_channel_.get(), activation, &forward),
                    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize");
    check_supported(
        cudnnGetBatchNormalizationBackwardExWorkspaceSize(
            gpu.handle.get(), kMode, operations_, tensor_.get(), tensor_.get(), tensor_.get(), z_,
            tensor_.get(), per_channel_.get(), activation, &backward),
        "cudnnGetBatchNormalizationBackwardExWorkspaceSize");
    check_supported(
        cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
            gpu.handle.get(), kMode, operations_, activation, tensor_.get(), &reserve_bytes_),
        "cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
    workspace_bytes_ = std::max(forward, backward);
    workspace_ = allocate(workspace_bytes_);
    reserve_ = allocate(reserve_bytes_);
    check_cuda(cudaDeviceSynchronize(), "filling memory");  // for which the stream does not wait
  }

  void pass() {
    const float one = 1, zero = 0;
    const bool residual = z_ != nullptr;
    check_supported(
        cudnnBatchNormalizationForwardTrainingEx(
            gpu_.handle.get(), kMode, operations_, &one, &zero, tensor_.get(), memory_.x.get(), z_,
            residual ? memory_.residual.get() : nullptr, tensor_.get(), memory_.y.get(),
            per_channel_.get(), memory_.row(Memory::kScale), memory_.row(Memory::kBias), 0, nullptr,
            nullptr, kEps, memory_.row(Memory::kMean), memory_.row(Memory::kInvStd),
            activation_.get(), workspace_.get(), workspace_bytes_, reserve_.get(), reserve_bytes_),
        "cudnnBatchNormalizationForwardTrainingEx");
    check_supported(
        cudnnBatchNormalizationBackwardEx(
            gpu_.handle.get(), kMode, operations_, &one, &zero, &one, &zero, tensor_.get(),
            memory_.x.get(), tensor_.get(), memory_.y.get(), tensor_.get(), memory_.grad_y.get(),
            z_, residual ? memory_.grad_residual.get() : nullptr, tensor_.get(),
            memory_.grad_x.get(), per_channel_.get(), memory_.row(Memory::kScale),
            memory_.row(Memory::kBias), memory_.row(Memory::kGradScale),
            memory_.row(Memory::kGradBias), kEps, memory_.row(Memory::kMean),
            memory_.row(Memory::kInvStd), activation_.get(), workspace_.get(), workspace_bytes_,
            reserve_.get(), reserve_bytes_),
        "cudnnBatchNormalizationBackwardEx");
  }

  Moments moments() const { return memory_.moments(); }

 private:
  using Tensor = std::unique_ptr<cudnnTensorStruct, DestroyTensor>;
  static constexpr cudnnBatchNormMode_t kMode = CUDNN_BATCHNORM_SPATIAL_PERSISTENT;

  static Tensor make_tensor() {
    cudnnTensorDescriptor_t tensor = nullptr;
    check_cudnn(cudnnCreateTensorDescriptor(&tensor), "cudnnCreateTensorDescriptor");
    return Tensor(tensor);
  }

  const Gpu& gpu_;
  const cudnnBatchNormOps_t operations_;
  Memory memory_;
  Tensor tensor_, per_channel_;
  cudnnTensorDescriptor_t z_ = nullptr;  // of the residual
  std::unique_ptr<cudnnActivationStruct, DestroyActivation> activation_;
  DeviceBuffer workspace_, reserve_;
  std::size_t workspace_bytes_ = 0, reserve_bytes_ = 0;
};

/// One GPU's part of a group BatchNorm.
class GroupMember {
 public:
  GroupMember(const Gpu& gpu, const BatchNormWork& work, int gpus)
      : gpu_(gpu),
        memory_(work, shift_of(gpu.ordinal), false),
        forward_peers_(
            allocate(4 * sizeof(float) * static_cast<std::size_t>(work.channels * gpus))),
        backward_peers_(
            allocate(4 * sizeof(float) * static_cast<std::size_t>(work.channels * gpus))) {
    const GroupNormProblem problem{extents_of(work), work.dtype, gpus};
    const CudnnTarget target{gpu.handle.get(), nullptr};
    forward_ = plan(describe_group_forward(problem, target), target, "forward");
    backward_ = plan(describe_group_backward(problem, target), target, "backward");
    workspace_ = allocate(std::max(forward_.workspace, backward_.workspace));
    check_cuda(cudaDeviceSynchronize(), "filling memory");  // for which the stream does not wait
  }

  /// `members`: in the order of their GPUs' numbers, which cuDNN takes for the ranks.
  void bind(const std::vector<std::unique_ptr<GroupMember>>& members) {
    std::vector<std::pair<std::int64_t, void*>> forward = {{kNormX, memory_.x.get()},
                                                           {kNormY, memory_.y.get()},
                                                           row(kNormScale, Memory::kScale),
                                                           row(kNormBias, Memory::kBias),
                                                           row(kNormMean, Memory::kMean),
                                                           row(kNormInvStd, Memory::kInvStd),
                                                           {kNormEps, &eps_}};
    std::vector<std::pair<std::int64_t, void*>> backward = {{kNormX, memory_.x.get()},
                                                            {kNormGradY, memory_.grad_y.get()},
                                                            {kNormGradX, memory_.grad_x.get()},
                                                            row(kNormScale, Memory::kScale),
                                                            row(kNormMean, Memory::kMean),
                                                            row(kNormInvStd, Memory::kInvStd),
                                                            row(kNormGradScale, Memory::kGradScale),
                                                            row(kNormGradBias, Memory::kGradBias),
                                                            {kNormEps, &eps_}};
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::int64_t id = kPeerId + static_cast<std::int64_t>(i);
      forward.emplace_back(id, members[i]->forward_peers_.get());
      backward.emplace_back(id, members[i]->backward_peers_.get());
    }
    forward_tensors_ = pack(forward);
    backward_tensors_ = pack(backward);
  }

  void pass() {
    check_cudnn(cudnnBackendExecute(gpu_.handle.get(), forward_.plan.get(), forward_tensors_.get()),
                "the forward pass of a group BatchNorm");
    check_cudnn(
        cudnnBackendExecute(gpu_.handle.get(), backward_.plan.get(), backward_tensors_.get()),
        "the backward pass of a group BatchNorm");
  }

  Moments moments() const { return memory_.moments(); }
  const Gpu& gpu() const { return gpu_; }

 private:
  std::pair<std::int64_t, void*> row(std::int64_t id, Memory::Row index) const {
    return {id, memory_.row(index)};
  }

  static CudnnPlan plan(const CudnnDescriptor& graph, const CudnnTarget& target, const char* pass) {
    std::string reason = "cuDNN proposes no engine";
    for (CudnnDescriptor& engine : find_norm_engines(graph, target)) {
      CudnnPlan plan = make_plan(std::move(engine), reason);
      if (plan.plan.get() != nullptr) return plan;
    }
    throw NotSupported(concat("group BatchNorm, ", pass, ": ", reason));
  }

  CudnnDescriptor pack(const std::vector<std::pair<std::int64_t, void*>>& tensors) const {
    std::vector<std::int64_t> ids;
    std::vector<void*> addresses;
    for (const auto& [id, address] : tensors) {
      ids.push_back(id);
      addresses.push_back(address);
    }
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set_all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
    pack.set_all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace_.get());
    pack.finalize("binding tensors");
    return pack;
  }

  const Gpu& gpu_;
  Memory memory_;
  DeviceBuffer forward_peers_, backward_peers_, workspace_;
  CudnnPlan forward_, backward_;
  CudnnDescriptor forward_tensors_, backward_tensors_;
  float eps_ = static_cast<float>(kEps);
};

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

void measure_fused(Json& one, const Gpu& gpu, const BatchNormWork& work, bool residual, int iters) {
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
        const DeviceGuard guard(own->gpu().ordinal);
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
    const DeviceGuard guard(i);
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
  const Gpu gpu(0);
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
