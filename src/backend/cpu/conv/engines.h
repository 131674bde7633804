#pragma once
// The implementations of convolutions on the CPU: one table. An implementation is a row of it, and
// a file beside this one with what computes.

#include <memory>
#include <span>
#include <string_view>

#include "backend/cpu/conv/convolution.h"
#include "lockstep/backend/convolutions.h"
#include "lockstep/core/shape.h"

namespace lockstep {

/// A row. It lives as long as the program, and its address says which it is.
struct ConvEngine {
  /// In $LOCKSTEP_CONVOLUTION, in the file of choices and in the log.
  const char* name;
  /// Whether it can compute the pass at all, on this processor.
  bool (*can_compute)(const ConvGeometry& geometry, ConvPass pass);
  /// Whether it may be the fastest for images of this shape. REQUIRES: can_compute.
  bool (*may_be_fastest)(const ConvGeometry& geometry, const Shape& input);
  /// Whether it is taken without a clock, where it may be the fastest and no row above it is.
  bool (*leads)(const ConvGeometry& geometry);
  /// For batches up to that of `input`, or for that one alone: `one_batch`. On the thread that will
  /// use it. REQUIRES: can_compute, of the passes that are run.
  std::unique_ptr<Convolution> (*make)(const ConvGeometry& geometry, const Shape& input,
                                       int threads);
  /// Whether kernels with fixed convolutions take it for images of this shape, if no row above it
  /// is taken; null: for none. REQUIRES: can_compute.
  bool (*fixed)(const ConvGeometry& geometry, const Shape& input) = nullptr;
  /// Whether what it makes serves batches of one size, whose rows are all complete at once.
  bool one_batch = false;
  /// Which tensors what it makes reads and writes, fp32 or bf16. One of fp32 may be given copies of
  /// bf16 tensors; one of bf16 is for such tensors alone, and may round the weights to bf16, too.
  DType tensors = DType::kFloat32;
  /// Of fp32: whether it may be the fastest with copies of bf16 tensors.
  bool copies = true;
  /// Of fp32: whether it rounds as little as a direct convolution does.
  bool exact = true;
};

/// All, ours first.
std::span<const ConvEngine> conv_engines();

/// The one of this name; null where there is none.
const ConvEngine* find_conv_engine(std::string_view name);

}  // namespace lockstep
