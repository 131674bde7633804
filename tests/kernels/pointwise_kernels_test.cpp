// Element-wise kernels against the CPU's backend, bit for bit, and Philox against core/rng.

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"
#include "kernels/primitives/philox.h"

namespace lockstep::test {
namespace {

struct Layout {
  Shape shape;
  Margins a, b, y;
};

// Dense with and without packs, ranges with and without packs, tensors of different row strides.
std::vector<Layout> layouts() {
  return {
      {{2, 3, 5, 8}, {}, {}, {}},
      {{2, 2, 6, 11}, {}, {}, {}},
      {{3, 5, 7}, {}, {}, {}},
      {{2, 3, 5, 8}, {4, 8}, {}, {12, 0}},
      {{2, 3, 5, 8}, {4, 8}, {1, 0}, {}},
      {{2, 7, 3}, {}, {2, 2}, {0, 1}},
      {{1, 1}, {1, 1}, {}, {}},
      {{2, 41, 43, 4}, {4, 0}, {4, 0}, {4, 0}},
  };
}

/// Values of three operands, and an operation on a, b and y.
using Operation = std::function<void(const Tensor& a, const Tensor& b, const Tensor& y)>;

Values result_of(const Layout& layout, const Operation& operation) {
  const auto backend = cpu_backend();
  const Operand a(*backend, layout.shape, random_values(layout.shape, 1), layout.a);
  const Operand b(*backend, layout.shape, random_values(layout.shape, 2), layout.b);
  const Operand y(*backend, layout.shape, random_values(layout.shape, 3), layout.y);
  operation(a.tensor(), b.tensor(), y.tensor());
  CHECK(y.margins_untouched());
  return y.get();
}

template <typename OnCpu, typename OnGpu>
void check_same_bits(const OnCpu& on_cpu, const OnGpu& on_gpu) {
  const auto backend = cpu_backend();
  for (const Layout& layout : layouts()) {
    CAPTURE(to_string(layout.shape));
    CAPTURE(layout.a.before);
    const Values expected = result_of(layout, [&](const Tensor& a, const Tensor& b,
                                                  const Tensor& y) { on_cpu(*backend, a, b, y); });
    check_in_all_orders(expected, [&](Backend& emulated) {
      return result_of(layout, [&](const Tensor& a, const Tensor& b, const Tensor& y) {
        on_gpu(emulated, a, b, y);
      });
    });
  }
}

TEST_CASE("Philox on the device gives the numbers of Rng") {
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{42}, ~std::uint64_t{0}}) {
    for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{5} << 40}) {
      Rng words(seed, RngPurpose::kDropout, index), uniforms(seed, RngPurpose::kDropout, index);
      for (std::uint64_t block = 0; block < 100; ++block) {
        const auto numbers =
            gpu::philox_block(gpu::philox_key(seed), RngPurpose::kDropout, index, block);
        for (const std::uint32_t word : numbers.words) {
          REQUIRE(word == words.next_u32());
          REQUIRE(gpu::to_uniform(word) == uniforms.uniform());
        }
      }
    }
  }
}

TEST_CASE("ReLU, sum and accumulation have the CPU's bits") {
  for (const bool accumulate : {false, true}) {
    check_same_bits([&](Backend& cpu, const Tensor& a, const Tensor&,
                        const Tensor& y) { cpu.copy(a, y, accumulate); },
                    [&](Backend& emulated, const Tensor& a, const Tensor&, const Tensor& y) {
                      emulated.copy(a, y, accumulate);
                    });
    check_same_bits(
        [&](Backend& cpu, const Tensor& a, const Tensor& b, const Tensor& y) {
          cpu.activations().activation_backward(ActivationKind::kRelu, a, b, y, accumulate);
        },
        [&](Backend& emulated, const Tensor& a, const Tensor& b, const Tensor& y) {
          emulated.activations().activation_backward(ActivationKind::kRelu, a, b, y, accumulate);
        });
  }
  check_same_bits(
      [](Backend& cpu, const Tensor& a, const Tensor&, const Tensor& y) {
        cpu.activations().activation_forward(ActivationKind::kRelu, a, y);
      },
      [](Backend& emulated, const Tensor& a, const Tensor&, const Tensor& y) {
        emulated.activations().activation_forward(ActivationKind::kRelu, a, y);
      });
  check_same_bits(
      [](Backend& cpu, const Tensor& a, const Tensor& b, const Tensor& y) {
        cpu.activations().binary_forward(BinaryKind::kAdd, a, b, y);
      },
      [](Backend& emulated, const Tensor& a, const Tensor& b, const Tensor& y) {
        emulated.activations().binary_forward(BinaryKind::kAdd, a, b, y);
      });
}

TEST_CASE("dropout has the CPU's bits in every layout") {
  for (const bool accumulate : {false, true}) {
    for (const float p : {0.0F, 0.3F, 0.9F}) {
      check_same_bits(
          [&](Backend& cpu, const Tensor& a, const Tensor&, const Tensor& y) {
            cpu.activations().dropout(a, y, p, 17, 3, accumulate);
          },
          [&](Backend& emulated, const Tensor& a, const Tensor&, const Tensor& y) {
            emulated.activations().dropout(a, y, p, 17, 3, accumulate);
          });
    }
  }
}

constexpr ActivationKind kActivations[] = {
    ActivationKind::kRelu6,       ActivationKind::kLeakyRelu, ActivationKind::kSigmoid,
    ActivationKind::kHardsigmoid, ActivationKind::kTanh,      ActivationKind::kSilu,
    ActivationKind::kHardswish,   ActivationKind::kGelu,      ActivationKind::kGeluTanh};

TEST_CASE("activations have the CPU's bits") {
  for (const ActivationKind kind : kActivations) {
    CAPTURE(std::string(to_string(kind)));
    const auto forward = [kind](Backend& on, const Tensor& a, const Tensor&, const Tensor& y) {
      on.activations().activation_forward({kind, 0.3F}, a, y);
    };
    check_same_bits(forward, forward);
    for (const bool accumulate : {false, true}) {
      const auto backward = [=](Backend& on, const Tensor& a, const Tensor& b, const Tensor& y) {
        on.activations().activation_backward({kind, 0.3F}, a, b, y, accumulate);
      };
      check_same_bits(backward, backward);
    }
  }
}

TEST_CASE("functions of two elements have the CPU's bits") {
  for (const BinaryKind kind :
       {BinaryKind::kAdd, BinaryKind::kSubtract, BinaryKind::kMultiply, BinaryKind::kPRelu}) {
    CAPTURE(std::string(to_string(kind)));
    const auto forward = [kind](Backend& on, const Tensor& a, const Tensor& b, const Tensor& y) {
      on.activations().binary_forward(kind, a, b, y);
    };
    check_same_bits(forward, forward);
    for (const bool accumulate : {false, true}) {
      for (const std::int64_t channels : {0, 1}) {  // 0: all
        // The first row of b for all samples, or one channel of every row.
        const auto left = [=](Backend& on, const Tensor& a, const Tensor& b, const Tensor& y) {
          Tensor met = b.sample_range(0, 1);
          met.shape = Shape{1, b.shape.channels()};
          if (channels == 1) met = b.channel_range(0, 1);
          on.activations().binary_backward_left(kind, a, met, a, y, accumulate);
        };
        check_same_bits(left, left);
      }
      const auto right = [=](Backend& on, const Tensor& a, const Tensor& b, const Tensor& y) {
        on.activations().binary_backward_right(kind, a, b, y, accumulate);
      };
      check_same_bits(right, right);
    }
  }
}

// A tensor of bytes in the middle of a row of 40, every other byte known.
std::vector<std::uint8_t> copied_bytes(Backend& emulated, DType type, std::int64_t channels,
                                       std::int64_t begin, bool filled) {
  const auto size = static_cast<std::int64_t>(size_of(type));
  const Shape wide{3, 40 / size};
  std::vector<std::uint8_t> from(120), to(120, 0xAA);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(i + 1);
  const Tensor destination = Tensor(to.data(), wide, type).channel_range(begin, channels);
  if (filled) {
    emulated.fill(destination, 1.0F);
  } else {
    emulated.copy(Tensor(from.data(), wide, type).channel_range(begin, channels), destination,
                  false);
  }
  std::vector<std::uint8_t> expected(120, 0xAA);
  const std::vector<std::uint8_t> one = type == DType::kUInt8 ? std::vector<std::uint8_t>{1}
                                        : type == DType::kBFloat16
                                            ? std::vector<std::uint8_t>{0x80, 0x3F}
                                            : std::vector<std::uint8_t>{0, 0, 0x80, 0x3F};
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t i = begin * size; i < (begin + channels) * size; ++i) {
      const auto at = static_cast<std::size_t>(row * 40 + i);
      expected[at] = filled ? one[static_cast<std::size_t>(i % size)] : from[at];
    }
  }
  CHECK(to == expected);
  return to;
}

TEST_CASE("copy and fill take any element type, width and alignment") {
  EmulatedGpu emulated;
  for (const bool filled : {false, true}) {
    for (const DType type : {DType::kUInt8, DType::kBFloat16, DType::kFloat32}) {
      const auto all = static_cast<std::int64_t>(40 / size_of(type));
      for (const auto& [channels, begin] :
           {std::pair{all, std::int64_t{0}}, {4, 4}, {3, 1}, {2, 2}}) {
        CAPTURE(std::string(to_string(type)));
        CAPTURE(channels);
        copied_bytes(emulated, type, channels, begin, filled);
      }
    }
  }
}

TEST_CASE("a block that never runs is seen") {
  const auto backend = cpu_backend();
  const Shape shape{2, 41, 43, 4};
  const Operand x(*backend, shape, random_values(shape, 1)), y(*backend, shape);
  EmulatedGpu emulated;
  CHECK(is_seen({.skipped_block = 2}, x.get(), [&] {
    emulated.copy(x.tensor(), y.tensor(), false);
    return y.get();
  }));
}

}  // namespace
}  // namespace lockstep::test
