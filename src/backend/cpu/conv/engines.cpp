#include "backend/cpu/conv/engines.h"

#include <algorithm>

#include "backend/cpu/conv/dnnl.h"
#include "backend/cpu/conv/dnnl_matmul.h"
#include "backend/cpu/conv/matmul.h"
#include "backend/cpu/conv/winograd.h"
#include "backend/cpu/simd.h"
#include "backend/cpu_kernels.h"

namespace lockstep {
namespace {

// With fewer channels, more than half of our products are of padding.
constexpr std::int64_t kFewestChannels = 8;

bool always(const ConvGeometry&) { return true; }
bool never(const ConvGeometry&) { return false; }
/// Which oneDNN does as fast, but not with a BatchNorm in the same pass over memory.
bool is_pointwise(const ConvGeometry& geometry) {
  return geometry.kernel_h == 1 && geometry.kernel_w == 1;
}
bool of_any_image(const ConvGeometry&, const Shape&) { return true; }

bool enough_channels(const ConvGeometry& geometry) {
  return std::min(geometry.in_channels, geometry.out_channels) >= kFewestChannels;
}

/// Of vectors of so many floats: sixteen where they are one register.
template <int kLanes>
bool suits_processor() {
  return kLanes <= simd::native_lanes();
}

bool can_be_winograd(const ConvGeometry& geometry, ConvPass) { return winograd_supports(geometry); }

bool winograd_is_candidate(const ConvGeometry& geometry, const Shape& input, int tile = 2) {
  return enough_channels(geometry) && winograd_supports(geometry) &&
         winograd_fits(geometry, input, tile);
}

/// Where tiles are fixed: those of 2x2 take what is left.
template <int kTile>
bool tiles_fit(const ConvGeometry& geometry, const Shape& input) {
  return kTile == 2 || winograd_fits(geometry, input, kTile);
}

/// On the widest vectors alone, and where Winograd is no candidate or computes mostly padding.
template <int kLanes>
bool matmul_is_candidate(const ConvGeometry& geometry, const Shape& input) {
  return kLanes == simd::native_lanes() && enough_channels(geometry) &&
         (!winograd_is_candidate(geometry, input) || matmul_skips_padding(geometry, input));
}

/// Tiles of 4x4 are asked of the clock on the widest vectors alone, as products are.
template <int kLanes, int kTile, DType kTensors = DType::kFloat32>
constexpr ConvEngine winograd(const char* name) {
  return {.name = name,
          .can_compute = can_be_winograd,
          .may_be_fastest =
              [](const ConvGeometry& geometry, const Shape& input) {
                return (kTile == 2 ? suits_processor<kLanes>() : kLanes == simd::native_lanes()) &&
                       winograd_is_candidate(geometry, input, kTile);
              },
          .leads = kTile == 4 || kLanes == 8 ? winograd_pays : never,
          .make =
              [](const ConvGeometry& geometry, const Shape& input, int threads) {
                return make_winograd_convolution(geometry, input, threads, kLanes, kTile, kTensors);
              },
          .fixed = kLanes == 8 && kTensors == DType::kFloat32 ? tiles_fit<kTile> : nullptr,
          .tensors = kTensors,
          .copies = false,  // there is one that reads bf16
          .exact = kTile == 2};
}

template <int kLanes>
constexpr ConvEngine matmul(const char* name) {
  return {
      .name = name,
      .can_compute = matmul_supports,
      .may_be_fastest = matmul_is_candidate<kLanes>,
      .leads = is_pointwise,
      .make = [](const ConvGeometry& geometry, const Shape& input,
                 int threads) { return make_matmul_convolution(geometry, input, threads, kLanes); },
      .fixed = kLanes == 8 ? of_any_image : nullptr};
}

template <DType kTensors>
std::unique_ptr<Convolution> make_dnnl(const ConvGeometry& geometry, const Shape& input,
                                       int threads) {
  return make_dnnl_convolution(geometry, input, threads, kTensors);
}

// In this order they are timed: of two that are nearly as fast the upper one is taken. Those of
// fp32 tensors by oneDNN are last because on several threads it loses a few percent more of what it
// does on one, and because it may ask the processor for the sizes of its caches: where convolutions
// are fixed, ours are taken wherever there is one.
constexpr ConvEngine kEngines[] = {
    winograd<8, 4, DType::kBFloat16>("winograd8_4x4_bf16"),  // on vectors of 8 floats
    winograd<16, 4, DType::kBFloat16>("winograd16_4x4_bf16"),
    {.name = "onednn_matmul_bf16",
     .can_compute = dnnl_matmul_supports,
     .may_be_fastest =
         [](const ConvGeometry& geometry, const Shape&) {
           return dnnl_gains_by_bf16() && enough_channels(geometry);
         },
     .leads = never,
     .make = make_dnnl_matmul_convolution,
     .one_batch = true,
     .tensors = DType::kBFloat16},
    {.name = "onednn_bf16",
     .can_compute = [](const ConvGeometry&, ConvPass) { return dnnl_computes_bf16(); },
     .may_be_fastest = [](const ConvGeometry&, const Shape&) { return dnnl_gains_by_bf16(); },
     .leads = always,
     .make = make_dnnl<DType::kBFloat16>,
     .one_batch = true,
     .tensors = DType::kBFloat16},
    winograd<8, 4>("winograd8_4x4"),
    winograd<16, 4>("winograd16_4x4"),
    winograd<8, 2>("winograd8"),
    winograd<16, 2>("winograd16"),
    matmul<8>("matmul8"),
    matmul<16>("matmul16"),
    {.name = kOneDnnConvolutions,
     .can_compute = [](const ConvGeometry&, ConvPass) { return true; },
     .may_be_fastest = [](const ConvGeometry&, const Shape&) { return true; },
     .leads = always,
     .make = make_dnnl<DType::kFloat32>,
     .fixed = of_any_image,
     .one_batch = true},
};

}  // namespace

std::span<const ConvEngine> conv_engines() { return kEngines; }

const ConvEngine* find_conv_engine(std::string_view name) {
  for (const ConvEngine& engine : kEngines) {
    if (name == engine.name) return &engine;
  }
  return nullptr;
}

}  // namespace lockstep
