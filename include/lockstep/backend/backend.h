#pragma once
// Everything one replica may do on its device. A Backend is used by one thread, its replica's; on a
// GPU all operations are asynchronous on the replica's stream, on the CPU they are done when they
// return. Tensors are channels-last views (core/tensor.h); pointers to floats are device memory of
// this backend. After planning (`prepare_*`, `allocate`) no operation allocates. Empty tensors
// (batch 0) are allowed everywhere: they read and write nothing. Throws Error for other null ones.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/backend/activations.h"
#include "lockstep/backend/convolutions.h"
#include "lockstep/backend/losses.h"
#include "lockstep/backend/norms.h"
#include "lockstep/backend/optimizer.h"
#include "lockstep/backend/pooling.h"
#include "lockstep/backend/sums.h"
#include "lockstep/core/device.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Copies of device memory on their way to the host, several at a time and known by their numbers,
/// `slot` (Backend::make_readback). The backend outlives it.
class Readback {
 public:
  virtual ~Readback() = default;
  /// Starts to copy what the operations that were issued until now leave in the memory. On the
  /// backend's thread.
  virtual void start(int slot) = 0;
  /// Waits until the last copy of this number has come, but for nothing that was issued after it,
  /// and throws what failed on the device. On any thread. The result is good until the next `start`
  /// of this number.
  virtual const void* wait(int slot) = 0;
};

/// Tensors whose contents can wait on the host while their memory serves others
/// (Backend::make_offload). The backend outlives it, and its thread uses it. That thread waits for
/// no copy: the operations that are issued later do.
class Offload {
 public:
  virtual ~Offload() = default;
  /// Copies to the host what the operations that were issued until now leave in a tensor.
  virtual void send(int tensor) = 0;
  /// Copies it back, after the operations that were issued until now.
  virtual void fetch(int tensor) = 0;
  /// What is issued from here on comes after the tensor's last copy.
  virtual void wait(int tensor) = 0;
};

/// A device's memory, and its operations by family.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const Device& device() const = 0;
  /// Whether operations may return before they are done.
  virtual bool asynchronous() const { return false; }
  /// Whether sums over a batch can be kept image by image and added up in an order that the images
  /// alone decide, so that it does not show in a bit how a batch is spread over devices. Gradients
  /// of parameters are then added in a binary tree over the images,
  ///   S[a, a + 2^j) = S[a, a + 2^(j-1)) + S[a + 2^(j-1), a + 2^j)  for a a multiple of 2^j,
  /// in fp32, where a half without images is left out. CPU devices always do, GPUs where
  /// BackendOptions::sums_by_image asks for it.
  virtual bool sums_by_image() const { return false; }

  // --- memory

  /// Memory of this device, aligned to 256 bytes, zeroed. Set-up only.
  virtual Storage allocate(std::size_t bytes) = 0;
  /// How many bytes `allocate` and the prepared operations hold now.
  virtual std::size_t allocated_bytes() const = 0;
  /// The most bytes that they have held at a time.
  virtual std::size_t peak_allocated_bytes() const = 0;
  /// Host to device; when it returns, the host memory may be reused. Dense tensors.
  virtual void upload(const Tensor& destination, const void* source) = 0;
  /// Device to host; complete after `synchronize`. Dense tensors.
  virtual void download(void* destination, const Tensor& source) = 0;
  /// Brings host memory to `staged`, memory of this device that is for this purpose alone, beside
  /// what has been issued, and ahead of its use; the host memory may be reused when it returns.
  virtual void stage(const Tensor& staged, const void* source) { upload(staged, source); }
  /// destination = staged, once it is there. `stage` may be called again afterwards.
  virtual void take_staged(const Tensor& staged, const Tensor& destination) {
    copy(staged, destination, false);
  }
  /// Makes what copies `source`, a dense tensor, to the host. Set-up only.
  virtual std::unique_ptr<Readback> make_readback(const Tensor& source, int slots);
  /// Makes what lets dense tensors wait on the host; takes as much memory there. Set-up only.
  virtual std::unique_ptr<Offload> make_offload(std::span<const Tensor> tensors);
  /// Waits until everything issued so far is done and throws what failed on the device.
  virtual void synchronize() = 0;
  /// Every element = value, rounded to the tensor's type. Any row strides.
  virtual void fill(const Tensor& tensor, float value) = 0;
  /// destination = source, or += with `accumulate`; equal shapes, any row strides.
  virtual void copy(const Tensor& source, const Tensor& destination, bool accumulate) = 0;

  // --- operations, by family; they live as long as the backend and are used by its thread

  virtual ConvolutionOperations& convolutions() = 0;
  /// BatchNorm, GroupNorm and Batch Renormalization.
  virtual NormOperations& norms() = 0;
  /// Functions of an element and of two, softmax, dropout.
  virtual ActivationOperations& activations() = 0;
  /// Pooling and interpolation.
  virtual PoolingOperations& pooling() = 0;
  /// Over the samples of a batch, and over what devices show each other.
  virtual SumOperations& sums() = 0;
  /// Losses with their gradients, and the confusion matrix.
  virtual LossOperations& losses() = 0;
  /// Loss scale, clipping, the update, averaged weights.
  virtual OptimizerOperations& optimizer() = 0;
};

/// How a backend may compute.
struct BackendOptions {
  /// Whether convolutions of fp32 tensors may round more than direct ones in fp32: a GPU their
  /// operands to TF32's 10 bits, as of PyTorch's; a CPU by Winograd's tiles of 4x4, 2.5 times as
  /// much. As of the program (run.tf32); false: exact fp32.
  bool tf32 = true;
  /// Whether a GPU keeps sums image by image (Backend::sums_by_image) and computes convolutions
  /// image by image, too, so that nothing of an image depends on how many there are. It then takes
  /// a launch for each image where it would take one for all. CPU devices always do.
  bool sums_by_image = false;
};

/// Returns how many host threads the operations of CPU devices have: the cores that this process
/// may use by its affinity and its cgroup's quota, or OMP_NUM_THREADS where that is less than its
/// affinity; at least 1.
int host_threads();

/// From now on CPU devices of this process compute by the instructions of this name: "avx2",
/// "avx512", or "portable", which is AVX2 with convolutions that no clock and no cache chooses, so
/// that every x86-64 processor with AVX2 computes the same bits. Without it $LOCKSTEP_CPU decides,
/// and where that is not set the fastest that the processor has. Any thread, before the process
/// makes its first backend. Throws ConfigError when this program or processor has no such
/// instructions, or when others are already in use.
void use_cpu_kernels(const std::string& name);

/// Makes the backend of a device. `threads`: host threads this replica may use for CPU operations
/// (at least 1); call it on the thread that will use the backend. Throws Error for a CUDA device in
/// a build without CUDA.
std::unique_ptr<Backend> make_backend(const Device& device, int threads,
                                      const BackendOptions& options = {});

/// Number of CUDA devices that answer; 0 in a build without CUDA or on a machine without a driver.
int cuda_device_count();

/// The devices that a text names: "cpu:4" (four virtual devices on the processor), "cuda:0,1,3",
/// "cuda:all", "cuda:0x4" (four replicas on GPU 0). Throws ConfigError for another text, or for
/// GPUs that are not there.
std::vector<Device> parse_devices(std::string_view text);

}  // namespace lockstep
