#include "backend/cpu/conv/engines.h"

#include <algorithm>

#include "backend/cpu/conv/bf16.h"
#include "backend/cpu/conv/dnnl.h"
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

bool enough_channels(const ConvGeometry& geometry) {
  return std::min(geometry.in_channels, geometry.out_channels) >= kFewestChannels;
}

/// Of vectors of so many floats: sixteen where they are one register.
template <int kLanes>
bool suits_processor() {
  return kLanes <= simd::native_lanes();
}

bool can_be_winograd(const ConvGeometry& geometry, ConvPass) { return winograd_supports(geometry); }

bool winograd_is_candidate(const ConvGeometry& geometry, const Shape& input) {
  return enough_channels(geometry) && winograd_supports(geometry) && winograd_fits(geometry, input);
}

/// On the widest vectors alone, and where Winograd is no candidate or computes mostly padding.
template <int kLanes>
bool matmul_is_candidate(const ConvGeometry& geometry, const Shape& input) {
  return kLanes == simd::native_lanes() && enough_channels(geometry) &&
         (!winograd_is_candidate(geometry, input) || matmul_skips_padding(geometry, input));
}

template <int kLanes>
constexpr ConvEngine winograd(const char* name) {
  return {.name = name,
          .can_compute = can_be_winograd,
          .may_be_fastest =
              [](const ConvGeometry& geometry, const Shape& input) {
                return suits_processor<kLanes>() && winograd_is_candidate(geometry, input);
              },
          .leads = kLanes == 8 ? winograd_pays : never,
          .make =
              [](const ConvGeometry& geometry, const Shape& input, int threads) {
                return make_winograd_convolution(geometry, input, threads, kLanes);
              },
          .fixed = kLanes == 8};
}

template <int kLanes>
constexpr ConvEngine matmul(const char* name) {
  return {
      .name = name,
      .can_compute = matmul_supports,
      .may_be_fastest = matmul_is_candidate<kLanes>,
      .leads = never,
      .make = [](const ConvGeometry& geometry, const Shape& input,
                 int threads) { return make_matmul_convolution(geometry, input, threads, kLanes); },
      .fixed = kLanes == 8};
}

template <bf16::Instructions kBy>
constexpr ConvEngine bf16_products(const char* name) {
  return {.name = name,
          .can_compute = [](const ConvGeometry& geometry,
                            ConvPass) { return bf16_supports(geometry) && bf16::usable(kBy); },
          .may_be_fastest =
              [](const ConvGeometry&, const Shape&) {
                return kBy != bf16::Instructions::kAny && kBy == bf16::best_instructions();
              },
          .leads = always,
          .make = [](const ConvGeometry& geometry, const Shape& input,
                     int threads) { return make_bf16_convolution(geometry, input, threads, kBy); },
          .tensors = DType::kBFloat16};
}

template <DType kTensors>
std::unique_ptr<Convolution> make_dnnl(const ConvGeometry& geometry, const Shape& input,
                                       int threads) {
  return make_dnnl_convolution(geometry, input, threads, kTensors);
}

// In this order they are timed: of two that are nearly as fast the upper one is taken. oneDNN is
// last because on several threads it loses a few percent more of what it does on one, and because
// it may ask the processor for the sizes of its caches: where convolutions are fixed, ours are
// taken wherever there is one.
constexpr ConvEngine kEngines[] = {
    bf16_products<bf16::Instructions::kAmx>("bf16_amx"),
    bf16_products<bf16::Instructions::kAvx512Bf16>("bf16_avx512"),
    bf16_products<bf16::Instructions::kAny>("bf16"),  // on any processor: to test by
    winograd<8>("winograd8"),                         // on vectors of 8 floats
    winograd<16>("winograd16"),
    matmul<8>("matmul8"),
    matmul<16>("matmul16"),
    {.name = "onednn_bf16",
     .can_compute = [](const ConvGeometry&, ConvPass) { return dnnl_computes_bf16(); },
     .may_be_fastest =
         [](const ConvGeometry&, const Shape&) {
           return bf16::best_instructions() != bf16::Instructions::kAny;
         },
     .leads = never,
     .make = make_dnnl<DType::kBFloat16>,
     .one_batch = true,
     .tensors = DType::kBFloat16},
    {.name = kOneDnnConvolutions,
     .can_compute = [](const ConvGeometry&, ConvPass) { return true; },
     .may_be_fastest = [](const ConvGeometry&, const Shape&) { return true; },
     .leads = always,
     .make = make_dnnl<DType::kFloat32>,
     .fixed = true,
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
