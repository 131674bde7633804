#pragma once
// What a BatchNorm layer consists of: how a shard is cut into slices, the memory kept for each,
// where their running statistics are, and the sums of the backward pass. A mode of the layer is
// another value of one of these.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// How a device's samples are cut into slices that are normalised separately (Ghost BatchNorm).
/// Cut into one, they stay together.
class BatchSlices {
 public:
  explicit constexpr BatchSlices(int most = 1) : most_(most) {}

  int most() const { return most_; }
  /// Samples of every slice but the last, which may have fewer: torch.chunk's.
  std::int64_t samples(std::int64_t batch) const;
  /// At least one, which is empty where the batch is.
  int count(std::int64_t batch) const;
  /// The samples of a slice; null for a null tensor.
  Tensor of(const Tensor& tensor, int index) const;

 private:
  int most_;
};

/// The rows of one slice, which are normalised together, and their memory.
struct NormSlice {
  Tensor x, residual, y;
  std::int64_t first = 0;    // image of the shard
  std::int64_t parts = 1;    // of its statistics: one for each image, or one for all
  float* moments = nullptr;  // [parts, 2, C] (mean, M2)
  float* sums = nullptr;     // [parts, 2, C] of the backward pass
  float* saved = nullptr;    // [3, C] as BatchNormSaved
  /// [3, 2, C] of Batch Renormalization: (r, d), what they make of (gamma, beta), and the gradients
  /// of these. Null: the statistics are taken as they are.
  float* correction = nullptr;
};

/// What a BatchNorm keeps from forward to backward for batches up to the planned one: the arrays of
/// every slice, with a part for each image; and where there are several slices the nodes of a tree
/// of gradients over the images of all.
class NormMemory {
 public:
  /// `corrected`: with room for a correction of every slice.
  NormMemory(const Shape& planned, const BatchSlices& slices, bool corrected = false);

  /// The slices whose memory it is.
  const BatchSlices& slices() const { return slices_; }
  std::size_t bytes() const;
  void bind(void* memory) { memory_ = static_cast<float*>(memory); }
  /// Sets the slice's pointers.
  void place(int index, NormSlice& slice) const;
  /// The same for a slice that is the whole batch; it uses the slices' memory, uncorrected.
  void place_whole(NormSlice& slice) const;
  /// Gradients of gamma and of beta, [2, C], each row at a multiple of the alignment.
  Tensor node(int index) const;

 private:
  std::int64_t slice_floats() const;

  const BatchSlices slices_;
  std::int64_t channels_, moments_, placed_, nodes_, correction_, whole_;
  float* memory_ = nullptr;
};

/// Running statistics of a device; of its first slices where these have some of their own. None
/// where they are not tracked.
class NormStates {
 public:
  explicit NormStates(std::vector<BatchNormState*> states) : states_(std::move(states)) {}

  /// Null: none.
  BatchNormState* state_of(int slice) const;
  /// Counts a batch and returns what its statistics are added to; null where a pass records none.
  RunningStatistics next(int slice, const StepContext& context, std::optional<double> momentum);

 private:
  std::vector<BatchNormState*> states_;  // [slice]
};

/// gamma and beta; none where the layer is not affine.
class NormAffine {
 public:
  NormAffine(Parameter* weight, Parameter* bias) : weight_(weight), bias_(bias) {}

  std::vector<const Parameter*> parameters() const;
  AffineParameters values() const;
  /// The values by which a slice is scaled and shifted; corrected, where the slice is.
  AffineParameters values(const NormSlice& slice) const;
  const Parameter* weight() const { return weight_; }
  const Parameter* bias() const { return bias_; }

 private:
  Parameter* weight_;
  Parameter* bias_;
};

/// Fills in the slice's correction towards the running statistics, if it has one. To be called
/// before they take the batch.
void correct_slice(NormOperations& norms, const NormSlice& slice, const NormAffine& affine,
                   std::span<const StatSlot> slots, const BatchNormOptions& options,
                   const BatchNormState* state);

/// The backward pass of a slice.
struct SliceBackward {
  const NormSlice& slice;
  const NormAffine& affine;
  Tensor grad_y;
  Tensor mask;  // the output that tells where the ReLU was off; null: not needed
  bool relu = false;
  std::int64_t batch = 0;  // of the device: images of all slices
  /// Where gamma's and beta's gradients are one tree over the images of several slices, so that
  /// they get the bits that they get from devices with a slice each. Null: summed slice by slice.
  const NormMemory* tree = nullptr;
};

/// Sums over the slice's images: into its `sums`, and into the gradients of gamma and beta.
void reduce_slice(Backend& backend, const StepContext& context, const SliceBackward& backward);

/// The residual's gradient, where that of x is not needed. `target` may be null.
void backward_residual(Backend& backend, bool relu, const Tensor& y, const Tensor& grad_y,
                       const GradTarget& target);

}  // namespace lockstep
