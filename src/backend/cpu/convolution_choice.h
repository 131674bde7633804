#pragma once
// Which implementation computes a convolution on the CPU: the fastest one by the clock
// (backend/conv/autotuner.h), for each pass by itself. One image is timed on one thread: then
// the choice, and with it every bit, is the same however a batch is spread over devices and
// threads.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/bf16/instructions.h"
#include "lockstep/backend/convolutions.h"

namespace lockstep {

enum class ConvEngine : std::uint8_t {
  kOneDnn,
  kWinograd8,   // our Winograd F(2x2, 3x3) on vectors of 8 floats
  kWinograd16,  // of 16
  kMatmul8,     // our matrix products on vectors of 8 floats
  kMatmul16,    // of 16
  kBf16,        // our products of bf16 numbers, on any processor: to test by
  kBf16Avx512,  // by AVX512-BF16
  kBf16Amx,     // by AMX
};

inline constexpr std::array kConvEngines = {
    ConvEngine::kOneDnn,   ConvEngine::kWinograd8, ConvEngine::kWinograd16, ConvEngine::kMatmul8,
    ConvEngine::kMatmul16, ConvEngine::kBf16,      ConvEngine::kBf16Avx512, ConvEngine::kBf16Amx};

/// "onednn", "winograd8", "winograd16", "matmul8", "matmul16", "bf16", "bf16_avx512", "bf16_amx".
const char* to_string(ConvEngine engine);

/// What it multiplies bf16 numbers by; nothing where it does not round to them.
std::optional<bf16::Instructions> bf16_instructions(ConvEngine engine);
/// Whether it rounds the factors of its products to bf16.
inline bool rounds_to_bf16(ConvEngine engine) { return bf16_instructions(engine).has_value(); }

/// Whether the implementation can compute this at all, on this processor.
bool can_compute(ConvEngine engine, const ConvGeometry& geometry, ConvPass pass);

/// Implementations that may be the fastest for images of this shape; the first is the one that is
/// taken without a clock. `bf16`: also those that round to bf16.
std::vector<ConvEngine> conv_candidates(const ConvGeometry& geometry, const Shape& input,
                                        ConvPass pass, bool bf16 = false);

/// What the choices hold for: the processor, and the libraries that compute.
std::string conv_machine();

/// The choice for images of this shape (whatever the batch of `input`). Takes part of a second when
/// it was never made on this machine. $LOCKSTEP_CONVOLUTION, when it is set to names separated by
/// commas, decides: the first of them that can compute the convolution. Throws ConfigError for
/// another value, and for one that rounds to bf16 without `bf16`.
ConvEngine choose_conv_engine(const ConvGeometry& geometry, const Shape& input, ConvPass pass,
                              bool bf16 = false);

}  // namespace lockstep
