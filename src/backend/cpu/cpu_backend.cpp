#include "backend/cpu/cpu_backend.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backend/cpu/map.h"
#include "backend/cpu/parallel_for.h"
#include "backend/operands.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kHugePage = 2 << 20;

/// Memory of `bytes`, a multiple of kAlignment, or null. Large blocks ask for huge pages: passes
/// over activations miss the translation cache at every small page, and take up to twice the time.
void* allocate_aligned(std::size_t bytes) {
  if (bytes < kHugePage) return std::aligned_alloc(kAlignment, bytes);
  void* data = nullptr;
  if (posix_memalign(&data, kHugePage, bytes) != 0) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without it everything works, only slower
  return data;
}

template <typename T>
void fill_elements(const Tensor& tensor, T value, int threads) {
  T* data = static_cast<T*>(tensor.data);
  for_each_stretch<1>(tensor.shape, {tensor.row_stride}, threads,
                      [&](const auto& at, auto count) { std::fill_n(data + at[0], count, value); });
}

void copy_elements(const Tensor& source, const Tensor& destination, int threads) {
  const auto size = static_cast<std::int64_t>(size_of(source.dtype));
  const auto* from = static_cast<const std::byte*>(source.data);
  auto* to = static_cast<std::byte*>(destination.data);
  for_each_stretch<2>(source.shape, {source.row_stride, destination.row_stride}, threads,
                      [&](const auto& at, std::int64_t count) {
                        std::memcpy(to + at[1] * size, from + at[0] * size,
                                    static_cast<std::size_t>(count * size));
                      });
}

}  // namespace

void check_computes(DType dtype) {
  LOCKSTEP_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16,
                 "the CPU expects activations in fp32 or bf16, got ", to_string(dtype),
                 "; only GPUs compute on fp16");
}

void convert(const Tensor& source, const Tensor& destination, bool accumulate, int threads) {
  if (source.data == destination.data && !accumulate) return;
  with_element_type(source.dtype, [&]<typename From>(From) {
    with_element_type(destination.dtype, [&]<typename To>(To) {
      for_each_stretch<2>(source.shape, {source.row_stride, destination.row_stride}, threads,
                          [&](const auto& at, std::int64_t count) {
                            map_stretch(Identity(), count, accumulate,
                                        static_cast<To*>(destination.data) + at[1],
                                        static_cast<const From*>(source.data) + at[0]);
                          });
    });
  });
}

CpuContext::CpuContext(const Device& device, int threads)
    : device_(device), threads_(threads), allocated_(std::make_shared<AllocationCount>()) {
  LOCKSTEP_CHECK(device.kind == DeviceKind::kCpu, "expected a CPU device, got ", to_string(device));
  omp_set_num_threads(threads);  // of the calling thread; oneDNN asks OpenMP how many it may use
}

Storage CpuContext::allocate(std::size_t bytes) {
  const std::size_t rounded =
      std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* data = allocate_aligned(rounded);
  if (data == nullptr) throw_no_memory(device_, bytes, *allocated_);
  std::memset(data, 0, rounded);
  allocated_->add(rounded);
  return Storage(data, bytes, [allocated = allocated_, rounded](void* memory) {
    allocated->remove(rounded);
    std::free(memory);
  });
}

void* CpuContext::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_ = Storage();  // gives the old block back first
    scratch_ = allocate(bytes);
  }
  return scratch_.data();
}

void CpuBackend::upload(const Tensor& destination, const void* source) {
  check_transfer(destination, source);
  if (const std::size_t bytes = dense_bytes(destination); bytes > 0) {
    std::memcpy(destination.data, source, bytes);
  }
}

void CpuBackend::download(void* destination, const Tensor& source) {
  check_transfer(source, destination);
  if (const std::size_t bytes = dense_bytes(source); bytes > 0) {
    std::memcpy(destination, source.data, bytes);
  }
}

void CpuBackend::fill(const Tensor& tensor, float value) {
  check_fill(tensor);
  switch (tensor.dtype) {
    case DType::kFloat32:
      return fill_elements(tensor, value, cpu_.threads());
    case DType::kBFloat16: {
      BFloat16 number;
      number = value;
      return fill_elements(tensor, number, cpu_.threads());
    }
    case DType::kFloat16:
      throw Error("fp16 tensors live on GPUs only; the CPU has fp32 and bf16");
    case DType::kUInt8:
      return fill_elements(tensor, static_cast<std::uint8_t>(value), cpu_.threads());
    case DType::kUInt16:
      return fill_elements(tensor, static_cast<std::uint16_t>(value), cpu_.threads());
  }
}

void CpuBackend::copy(const Tensor& source, const Tensor& destination, bool accumulate) {
  check_copy(source, destination, accumulate);
  if (source.dtype == destination.dtype && !accumulate) {
    return copy_elements(source, destination, cpu_.threads());
  }
  convert(source, destination, accumulate, cpu_.threads());
}

}  // namespace lockstep
