#pragma once
// Which implementation computes a convolution on the CPU: the fastest one by the clock
// (backend/conv/autotuner.h), for each pass by itself. One image is timed on one thread: then
// the choice, and with it every bit, is the same however a batch is spread over devices and
// threads.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/backend/convolutions.h"

namespace lockstep {

enum class ConvEngine : std::uint8_t {
  kOneDnn,
  kWinograd8,   // our Winograd F(2x2, 3x3) on vectors of 8 floats
  kWinograd16,  // of 16
  kMatmul8,     // our matrix products on vectors of 8 floats
  kMatmul16,    // of 16
};

/// "onednn", "winograd8", "winograd16", "matmul8", "matmul16".
const char* to_string(ConvEngine engine);

/// Whether the implementation can compute this at all.
bool can_compute(ConvEngine engine, const ConvGeometry& geometry, ConvPass pass);

/// Implementations that may be the fastest for images of this shape; the first is the one that is
/// taken without a clock.
std::vector<ConvEngine> conv_candidates(const ConvGeometry& geometry, const Shape& input,
                                        ConvPass pass);

/// What the choices hold for: the processor, and the libraries that compute.
std::string conv_machine();

/// The choice for images of this shape (whatever the batch of `input`). Takes part of a second when
/// it was never made on this machine. $LOCKSTEP_CONVOLUTION, when it is set to names separated by
/// commas, decides: the first of them that can compute the convolution. Throws ConfigError for
/// another value.
ConvEngine choose_conv_engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass);

}  // namespace lockstep
