#pragma once
// Which implementation computes a convolution on the CPU: the fastest one by the clock
// (backend/conv/autotuner.h), for each pass by itself. One image is timed on one thread: then
// the choice, and with it every bit, is the same however a batch is spread over devices and
// threads.

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cpu/conv/engines.h"

namespace lockstep {

/// Implementations that may be the fastest for images of this shape and type, in the order of the
/// table. `exact`: of fp32 tensors, those alone that round as little as a direct convolution does.
std::vector<const ConvEngine*> conv_candidates(const ConvGeometry& geometry, const Shape& input,
                                               ConvPass pass, DType dtype = DType::kFloat32,
                                               bool exact = false);

/// What the choices hold for: the processor, and the libraries that compute.
std::string conv_machine();

/// The choice for images of this shape and type (whatever the batch of `input`). `training`: by the
/// clock, which takes part of a second when it was never made on this machine; else, where the file
/// of choices has none, by a rule: images to evaluate may come in any size. $LOCKSTEP_CONVOLUTION,
/// when it is set to names separated by commas, decides: the first of them that can compute the
/// convolution. Throws ConfigError for another value, and for one of bf16 tensors where these are
/// fp32.
const ConvEngine& choose_conv_engine(const ConvGeometry& geometry, const Shape& input,
                                     ConvPass pass, DType dtype = DType::kFloat32,
                                     bool exact = false, bool training = true);

}  // namespace lockstep
