#pragma once
// Everything one replica may do on its device. A Backend is used by one thread, its replica's; on a
// GPU all operations are asynchronous on the replica's stream, on the CPU they are done when they
// return. Tensors are channels-last views (core/tensor.h); pointers to floats are device memory of
// this backend. After planning (`prepare_*`, `allocate`) no operation allocates. Empty tensors
// (batch 0) are allowed everywhere: they read and write nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/backend/operands.h"
#include "lockstep/core/device.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Copies of device memory on their way to the host, several at a time, each in a slot of its own
/// (Backend::make_readback). The backend outlives it.
class Readback {
 public:
  virtual ~Readback() = default;
  /// Copies what the operations that were issued until now leave in the memory. On the backend's
  /// thread.
  virtual void start(int slot) = 0;
  /// Waits until the slot's last copy has come, but for nothing that was issued after it, and
  /// throws what failed on the device. On any thread; the memory is the slot's until its next
  /// `start`.
  virtual const void* wait(int slot) = 0;
};

/// What a replica's device computes of activations without learning anything: element by element,
/// over channels and over windows. `accumulate`: the gradient is added to, not written. Results may
/// lie where an operand of the same shape does, but for those of windows.
class ActivationOperations {
 public:
  virtual ~ActivationOperations() = default;

  virtual void activation_forward(const Activation& activation, const Tensor& x,
                                  const Tensor& y) = 0;
  /// `saved`: y where Activation::from_output() says so, else x.
  virtual void activation_backward(const Activation& activation, const Tensor& saved,
                                   const Tensor& grad_y, const Tensor& grad_x, bool accumulate) = 0;
  /// y = f(a, b); a has y's shape. b has it, too, or one channel, or one row for each sample
  /// ([N, 1, ..., 1, C]) or for all of them ([1, ..., 1, C]), or both. Where the others are
  /// narrower, b and its gradient may be fp32 all the same.
  virtual void binary_forward(BinaryKind kind, const Tensor& a, const Tensor& b,
                              const Tensor& y) = 0;
  /// The gradient of a.
  virtual void binary_backward_left(BinaryKind kind, const Tensor& a, const Tensor& b,
                                    const Tensor& grad_y, const Tensor& grad_a,
                                    bool accumulate) = 0;
  /// The gradient of b, summed in double over the elements of a that one of b meets. grad_b has b's
  /// shape; where b has one row for all samples, a row for each of them, which sum_over_images adds
  /// up: so the result of a sample does not depend on the others.
  virtual void binary_backward_right(BinaryKind kind, const Tensor& a, const Tensor& grad_y,
                                     const Tensor& grad_b, bool accumulate) = 0;
  /// y = e^x / the sum of e^x over the channels.
  virtual void softmax_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                                bool accumulate) = 0;
  /// y = x * keep / (1 - p); keep is a function of (seed, sample_offset + n, position) only, so
  /// that it does not depend on how samples are spread over devices. The backward pass is the same
  /// call on the gradient.
  virtual void dropout(const Tensor& x, const Tensor& y, float p, DeviceScalar<std::uint64_t> seed,
                       std::int64_t sample_offset, bool accumulate) = 0;
  /// `winners`: uint8 of y's shape, dense; the window position of each maximum (the first of
  /// equals).
  virtual void max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                                const Tensor& winners) = 0;
  virtual void max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                                 const Tensor& grad_y, const Tensor& grad_x, bool accumulate) = 0;
  /// Averages over the whole window, padding included (PyTorch's count_include_pad = true).
  virtual void avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) = 0;
  virtual void avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                                 const Tensor& grad_x, bool accumulate) = 0;
  /// Averages over bins that divide x's height and width into y's, as
  /// torch.nn.functional.adaptive_avg_pool2d. Bins share positions where they do not divide evenly.
  virtual void adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                          bool accumulate) = 0;
  /// Bilinear interpolation from x's height and width to y's, as torch.nn.functional.interpolate.
  virtual void upsample_bilinear_forward(const Tensor& x, const Tensor& y, bool align_corners) = 0;
  virtual void upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x,
                                          bool align_corners, bool accumulate) = 0;
};

class Backend : public ActivationOperations {
 public:
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
  // -------------------------------------------------------------------------------------------
  /// Memory of this device, aligned to 256 bytes, zeroed. Set-up only.
  virtual Storage allocate(std::size_t bytes) = 0;
  /// Bytes that `allocate` and the prepared operations hold now.
  virtual std::size_t allocated_bytes() const = 0;
  /// The most that they have held at a time.
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
  /// For copies of `source`, a dense tensor. Set-up only.
  virtual std::unique_ptr<Readback> make_readback(const Tensor& source, int slots);
  /// Waits until everything issued so far is done and throws what failed on the device.
  virtual void synchronize() = 0;
  /// Every element = value, rounded to the tensor's type. Any row strides.
  virtual void fill(const Tensor& tensor, float value) = 0;
  /// destination = source, or += with `accumulate`; equal shapes, any row strides.
  virtual void copy(const Tensor& source, const Tensor& destination, bool accumulate) = 0;

  // --- convolution
  // --------------------------------------------------------------------------------------
  /// Chooses and caches the implementation for inputs of this shape and type; `backward` and
  /// `grad_input` say which gradients will be asked for. Set-up only; calling it again with the
  /// same arguments costs nothing. Throws Error for a type that the device does not compute in.
  virtual void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                              bool backward, bool grad_input) = 0;
  /// Says which weights the passes until the next call use, and that they stay as they are: a
  /// device that computes with them in another order or type converts all of them here, at once.
  /// The passes of other weights give the same bits, and convert their own. REQUIRES: prepared
  /// convolutions.
  virtual void prepack_conv2d_weights(std::span<const ConvWeights> weights) {
    static_cast<void>(weights);
  }
  /// y = x * weight + bias; bias null for none. weight [out, in/groups, kh, kw], bias [out]. x and
  /// y have one type; where it is narrower than fp32, the weights are rounded to it.
  virtual void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                              const float* bias, const Tensor& y) = 0;
  /// grad_x = the gradient of x, which is written and not added to; grad_y has y's shape.
  virtual void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                    const float* weight, const Tensor& grad_x) = 0;
  /// grad_weight += ..., grad_bias += ... (null: none); with sums_by_image() in its tree.
  virtual void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                       const Tensor& grad_y, float* grad_weight,
                                       float* grad_bias) = 0;

  /// A line per prepared pass: what computes it, and its time when that was chosen; for reports.
  /// Empty where a device has no choice.
  virtual std::vector<std::string> conv2d_algorithms() const { return {}; }

  // --- BatchNorm (Ioffe and Szegedy 2015; merge: Chan, Golub, LeVeque 1979)
  // --------------------------------
  /// slots [parts, 2, C] = (mean, M2) of equal parts of the rows of x; zeros when there are none.
  /// More than one part only with sums_by_image().
  virtual void batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) = 0;
  /// Merges the slots, normalises x, adds the residual, applies the ReLU, keeps what the backward
  /// pass needs and updates the running statistics (operands.h).
  /// REQUIRES: the slots' counts sum to at least 2 (the layer checks and names itself).
  virtual void batch_norm_forward(const BatchNormForward& arguments) = 0;
  /// Normalises x by the given statistics, adds the residual, applies the ReLU.
  virtual void batch_norm_inference(const BatchNormInference& arguments) = 0;
  /// Whether conv2d_inference saves a pass over memory for this convolution of an input of this
  /// shape. A BatchNorm's y behind it may then be its x, too.
  virtual bool normalizes_in_convolution(const ConvGeometry& geometry, const Shape& input) const {
    static_cast<void>(geometry), static_cast<void>(input);
    return false;
  }
  /// conv2d_forward to `normalization.y`, which is then normalised where it lies, with the bits of
  /// both operations one after the other. normalization.x is not read. Throws Error where no
  /// convolution is normalised.
  virtual void conv2d_inference(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const float* bias, const BatchNormInference& normalization) {
    static_cast<void>(geometry), static_cast<void>(x), static_cast<void>(weight);
    static_cast<void>(bias), static_cast<void>(normalization);
    throw Error("no convolution is normalised on " + to_string(device()));
  }
  /// This device's sums for the backward pass, to be shown to the others, and the gradients of
  /// gamma and beta, which are added to.
  virtual void batch_norm_backward_reduce(const BatchNormBackwardReduce& arguments) = 0;
  /// The gradient of x from the sums of all devices.
  virtual void batch_norm_backward_apply(const BatchNormBackwardApply& arguments) = 0;

  // --- what stands in for BatchNorm, beside its own operations
  // --------------------------------------------------------------------------------------------
  /// Every channel of the slot gets mean and M2 of all values of its group (Chan's formula).
  /// Nothing changes where there are no rows.
  virtual void group_moments(const GroupMoments& arguments) = 0;
  virtual void group_norm_backward_apply(const GroupNormBackwardApply& arguments) = 0;
  /// REQUIRES: the slots count rows.
  virtual void batch_renorm_correction(const BatchRenormCorrection& arguments) = 0;
  virtual void batch_renorm_gradient(const BatchRenormGradient& arguments) = 0;

  // --- sums over the samples of a batch, and over the slots of several
  // -----------------------------------------------------------------------------------------------
  /// slot [2, E] = the sum over the samples of x of each of their E elements: the nearest float,
  /// and what is left of the sum in double; zeros when there are no samples.
  virtual void sum_over_batch(const Tensor& x, float* slot) = 0;
  /// Every sample of y = the sums of all slots and their parts, in their order and in double,
  /// rounded once. Slots of more than one part only with sums_by_image().
  virtual void broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) = 0;

  /// sum [E] += the sum over the samples of x, fp32, of each of their E elements, in the tree of
  /// sums_by_image(), wherever that is kept.
  virtual void sum_over_images(const Tensor& x, float* sum) = 0;

  // --- loss, metrics, optimizer
  // -----------------------------------------------------------------------------
  /// Adds to the loss, and writes its gradient where it is wanted (operands.h), as the next one.
  virtual void cross_entropy(const CrossEntropy& arguments) = 0;
  virtual void mean_squared_error(const MeanSquaredError& arguments) = 0;
  /// Whether `element_losses` computes this formula here.
  virtual bool computes(const ElementFormula& formula) const = 0;
  virtual void element_losses(const ElementLosses& arguments) = 0;
  virtual void label_probabilities(const LabelProbabilities& arguments) = 0;
  // One after another, each of the first two in every round; ranks show each other the slots.
  virtual void ohem_count(const OhemCount& count) = 0;
  virtual void ohem_narrow(const OhemNarrow& narrow) = 0;
  virtual void ohem_choose(const OhemChoice& choice) = 0;
  virtual void ohem_share(const OhemShare& share) = 0;
  virtual void dice_sums(const DiceSums& arguments) = 0;
  virtual void dice_losses(const DiceLosses& arguments) = 0;
  /// Each of `count` doubles in device memory becomes 0, but for those that are not finite, which
  /// stay: what has gone wrong in a step is not lost before the host has seen it.
  virtual void reset_sums(double* sums, int count) = 0;
  /// matrix [classes, classes] (row: label, column: the largest logit, first of equals) += counts
  /// of pixels whose label is below `classes`. Device memory.
  virtual void confusion_matrix(const Tensor& logits, const Tensor& labels,
                                std::int64_t* matrix) = 0;
  /// Looks whether a rank's loss and gradients are finite, and notes it in the guard.
  virtual void check_gradients(const GradientCheck& check) = 0;
  /// Adds up the gradients of all parts, updates the owner's ranges, and writes the new weights to
  /// every rank's memory.
  virtual void optimizer_update(const OptimizerShard& shard) = 0;
  /// squares [block] = the sum of g^2 over the block's elements that are in the shard's ranges, in
  /// double, for the blocks of kNormBlock elements up to the last range's end, from element 0 on;
  /// g as in optimizer_update, before any clipping. Of the shard, `grads`, `joins`, `ranges`,
  /// `weights` and `grad_scale` are read.
  virtual void gradient_squares(const OptimizerShard& shard, double* squares) = 0;
  virtual void clip_factor(const ClipFactor& clip) = 0;
  virtual void average_weights(const WeightAverage& average) = 0;
  virtual void update_loss_scale(const LossScaleUpdate& update) = 0;
};

/// How a backend may compute.
struct BackendOptions {
  /// Whether convolutions of fp32 tensors may round their operands to TF32's 10 bits (CUDA only).
  bool tf32 = false;
  /// Whether a GPU keeps sums image by image (Backend::sums_by_image) and computes convolutions
  /// image by image, too, so that nothing of an image depends on how many there are. It then takes
  /// a launch for each image where it would take one for all. CPU devices always do.
  bool sums_by_image = false;
};

/// Host threads for the operations of CPU devices: the cores that this process may use (its
/// affinity), or OMP_NUM_THREADS where that is less; at least 1.
int host_threads();

/// The backend of a device. `threads`: host threads this replica may use for CPU operations (at
/// least 1); call it on the thread that will use the backend. Throws Error for a CUDA device in a
/// build without CUDA.
std::unique_ptr<Backend> make_backend(const Device& device, int threads,
                                      const BackendOptions& options = {});

/// Number of CUDA devices that answer; 0 in a build without CUDA or on a machine without a driver.
int cuda_device_count();

/// The devices that a text names: "cpu:4" (four virtual devices on the processor), "cuda:0,1,3",
/// "cuda:all", "cuda:0x4" (four replicas on GPU 0). Throws ConfigError for another text, or for
/// GPUs that are not there.
std::vector<Device> parse_devices(std::string_view text);

}  // namespace lockstep
