// What the files beside this one are compiled to, for one instruction set, as the rest of the
// program sees it.

#include <oneapi/dnnl/dnnl.hpp>

#ifdef __FMA__
#include <immintrin.h>
#endif

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu_kernels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

#if defined(__AVX512F__)
constexpr const char* kName = "avx512";
#elif defined(__AVX2__)
constexpr const char* kName = "avx2";
#else
constexpr const char* kName = "generic";
#endif

/// oneDNN asks the processor what it has. It is to use no instruction that is not of this set: else
/// it would not compute what another processor does. Throws Error where it already has.
void limit_onednn() {
#if defined(__AVX2__) && !defined(__AVX512F__)
  static const bool limited = dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2) == dnnl::status::success ||
                              dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx2;
  LOCKSTEP_CHECK(limited,
                 "oneDNN has been used in this process with more than AVX2; ask for "
                 "kernels of AVX2 before it, or for a process by LOCKSTEP_CPU=avx2");
#endif
}

std::unique_ptr<Backend> make(const Device& device, int threads, const BackendOptions& options) {
  limit_onednn();
  return std::make_unique<CpuBackend>(device, threads, options);
}

std::string machine() {
  limit_onednn();
  return CpuConvolutions::machine();
}

// In intrinsics: what a compiler makes of a product and a sum depends on its options, and two
// instructions for one are another peak.
#if defined(__AVX512F__)
using Vector = __m512;
Vector fused(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
using Vector = __m256;
Vector fused(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#else
using Vector [[gnu::vector_size(16)]] = float;
Vector fused(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

/// Sums that do not wait for one another: more than a multiply-add's latency times those that a
/// core begins per cycle, and few enough for the registers.
constexpr int kSums = 12;

std::int64_t multiply_add(std::int64_t iterations) {
  // Read one by one: a compiler that knew them to be equal would compute one sum for all.
  volatile float start = 0;
  Vector sums[kSums];
  for (Vector& sum : sums) sum = start - Vector{};
  const Vector scale = 0.5F - Vector{};
  const Vector offset = 1.0F - Vector{};
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (Vector& sum : sums) sum = fused(sum, scale, offset);
  }
  Vector total{};
  for (const Vector& sum : sums) total += sum;
  volatile float used = total[0];  // the compiler may not leave them out
  static_cast<void>(used);
  return iterations * 2 * kSums * std::int64_t{sizeof(Vector) / sizeof(float)};
}

}  // namespace
}  // namespace lockstep

extern "C" lockstep::CpuKernels LOCKSTEP_CPU_KERNELS() {
  return {lockstep::kName,   false,
          lockstep::make,    lockstep::CpuConvolutions::bf16_products,
          lockstep::machine, lockstep::multiply_add};
}
