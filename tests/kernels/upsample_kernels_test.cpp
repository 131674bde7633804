// Interpolation kernels against the CPU's backend, bit for bit.

#include <doctest/doctest.h>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"

namespace lockstep::test {
namespace {

struct UpsampleKernelCase {
  std::int64_t in_height, in_width, out_height, out_width, channels;
  Margins margins;
};

std::vector<UpsampleKernelCase> upsample_kernel_cases() {
  return {
      {6, 8, 12, 16, 8, {}},   {5, 7, 10, 14, 8, {4, 0}}, {5, 7, 13, 11, 3, {1, 1}},
      {11, 13, 4, 5, 4, {}},   {1, 1, 3, 2, 5, {}},       {9, 3, 4, 10, 1, {2, 0}},
      {37, 41, 97, 83, 4, {}}, {4, 6, 4, 6, 4, {}},       {7, 5, 1, 1, 8, {0, 4}},
  };
}

struct UpsampleResults {
  Values y, grad_x;
  friend bool operator==(const UpsampleResults&, const UpsampleResults&) = default;
};

/// forward(x, y) and backward(grad_y, grad_x) on the operands of a case.
template <typename Forward, typename Backward>
UpsampleResults upsample_results(const UpsampleKernelCase& c, const Forward& forward,
                                 const Backward& backward) {
  const auto cpu = cpu_backend();
  const Shape in{2, c.in_height, c.in_width, c.channels},
      out{2, c.out_height, c.out_width, c.channels};
  const Operand x(*cpu, in, random_values(in, 1), c.margins), y(*cpu, out, c.margins);
  const Operand grad_y(*cpu, out, random_values(out, 2), c.margins);
  const Operand grad_x(*cpu, in, random_values(in, 3), c.margins);
  forward(x.tensor(), y.tensor());
  backward(grad_y.tensor(), grad_x.tensor());
  CHECK(y.margins_untouched());
  CHECK(grad_x.margins_untouched());
  return {y.get(), grad_x.get()};
}

UpsampleResults upsampled_on_gpu(Backend& emulated, const UpsampleKernelCase& c, bool align,
                                 bool accumulate) {
  return upsample_results(
      c,
      [&](const Tensor& x, const Tensor& y) {
        emulated.pooling().upsample_bilinear_forward(x, y, align);
      },
      [&](const Tensor& grad_y, const Tensor& grad_x) {
        emulated.pooling().upsample_bilinear_backward(grad_y, grad_x, align, accumulate);
      });
}

TEST_CASE("interpolation has the CPU's bits") {
  const auto cpu = cpu_backend();
  for (const UpsampleKernelCase& c : upsample_kernel_cases()) {
    for (const bool align : {false, true}) {
      CAPTURE(c.out_height);
      CAPTURE(align);
      const bool accumulate = c.channels % 4 == 0 ? align : !align;
      const UpsampleResults expected = upsample_results(
          c,
          [&](const Tensor& x, const Tensor& y) {
            cpu->pooling().upsample_bilinear_forward(x, y, align);
          },
          [&](const Tensor& grad_y, const Tensor& grad_x) {
            cpu->pooling().upsample_bilinear_backward(grad_y, grad_x, align, accumulate);
          });
      check_in_all_orders(expected, [&](Backend& emulated) {
        return upsampled_on_gpu(emulated, c, align, accumulate);
      });
    }
  }
}

TEST_CASE("a block that never runs is seen") {
  const UpsampleKernelCase c{20, 20, 41, 43, 1, {}};
  EmulatedGpu emulated;
  const UpsampleResults expected = upsampled_on_gpu(emulated, c, false, false);
  for (const int block : {0, 2}) {
    CHECK(is_seen({.skipped_block = block}, expected,
                  [&] { return upsampled_on_gpu(emulated, c, false, false); }));
  }
}

}  // namespace
}  // namespace lockstep::test
