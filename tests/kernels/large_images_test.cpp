// Images at the border of 32-bit indices. Memory is reserved and not touched but where the last
// block of every launch writes, and nothing else of a launch runs.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include "kernels/emulated_gpu.h"
#include "kernels/primitives/divisor.h"

namespace lockstep::test {
namespace {

/// Zeros, until they are written; null where the machine does not give address space away.
class Reserved {
 public:
  explicit Reserved(const Shape& shape)
      : bytes_(static_cast<std::size_t>(shape.elements()) * sizeof(float)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) tensor_ = Tensor(memory, shape);
  }
  ~Reserved() {
    if (tensor_) munmap(tensor_.data, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  const Tensor& tensor() const { return tensor_; }
  /// Of one channel.
  float& at(std::int64_t n, std::int64_t y, std::int64_t x) const {
    const Shape& s = tensor_.shape;
    return tensor_.floats()[(n * s.height() + y) * s.width() + x];
  }

 private:
  std::size_t bytes_;
  Tensor tensor_;
};

bool all_there(std::initializer_list<const Reserved*> tensors) {
  for (const Reserved* each : tensors) {
    if (!each->tensor()) {
      MESSAGE("SKIPPED: the machine reserves no address space of several GB");
      return false;
    }
  }
  return true;
}

/// A GPU on which every pack has a thread of its own.
EmulatedGpu vast() { return EmulatedGpu(1 << 20); }

// 3 images of 2^30 pixels are three launches; one of a little less than 2^31 is a single one.
const std::vector<Shape> kLarge = {{3, 32768, 32768, 1}, {1, 46340, 46339, 1}};

TEST_CASE("the last pixels of images of about 2^31 are right") {
  for (const Shape& large : kLarge) {
    CAPTURE(to_string(large));
    const std::int64_t samples = large.batch(), y = large.height() - 1, x = large.width() - 1;
    const Shape small{samples, 2, 2, 1};
    const Reserved few(small), many(large);
    if (!all_there({&few, &many})) return;
    for (std::int64_t n = 0; n < samples; ++n) few.at(n, 1, 1) = static_cast<float>(n + 1);
    const WithOptions last({.only_last_block = true});
    vast().pooling().upsample_bilinear_forward(few.tensor(), many.tensor(), true);
    for (std::int64_t n = 0; n < samples; ++n) {
      const auto right = doctest::Approx(static_cast<float>(n + 1)).epsilon(1e-3);
      CHECK(many.at(n, y, x) == right);
      CHECK(many.at(n, y, x - 1) == right);
      CHECK(many.at(n, 1, 1) == 0.0F);
    }
  }
}

TEST_CASE("gradients of the last pixels of images of about 2^31 are right") {
  for (const Shape& large : kLarge) {
    CAPTURE(to_string(large));
    const PoolGeometry geometry{3, 3, 3, 3, 1, 1};
    const Shape pooled = geometry.output_shape(large);
    const Reserved grad_y(pooled), grad_x(large);
    if (!all_there({&grad_y, &grad_x})) return;
    const std::int64_t y = large.height() - 1, x = large.width() - 1;
    const std::int64_t oy = (y + 1) / 3, ox = (x + 1) / 3;
    for (std::int64_t n = 0; n < large.batch(); ++n) {
      grad_y.at(n, oy, ox) = 9 * static_cast<float>(n + 1);
    }
    const WithOptions last({.only_last_block = true});
    vast().pooling().avg_pool_backward(geometry, grad_y.tensor(), grad_x.tensor(), false);
    for (std::int64_t n = 0; n < large.batch(); ++n) {
      CHECK(grad_x.at(n, y, x) == doctest::Approx(static_cast<float>(n + 1)));
      CHECK(grad_x.at(n, y, x - 3) == 0.0F);
    }
  }
}

TEST_CASE("the last elements of a tensor of more than 2^31 are copied") {
  const Shape shape{1, 1, 1, (std::int64_t{1} << 29) + 8};
  const Reserved source(shape), target(shape);
  if (!all_there({&source, &target})) return;
  const std::int64_t count = shape.elements() * 4 - 1;  // of bytes, from an odd address on
  const auto bytes = [&](const Reserved& memory) {
    return Tensor(static_cast<std::uint8_t*>(memory.tensor().data) + 1, {1, count}, DType::kUInt8);
  };
  bytes(source).bytes()[count - 1] = 7;
  bytes(source).bytes()[gpu::kMaxItems - 1] = 8;
  const WithOptions last({.only_last_block = true});
  vast().copy(bytes(source), bytes(target), false);
  CHECK(bytes(target).bytes()[count - 1] == 7);
  CHECK(bytes(target).bytes()[gpu::kMaxItems - 1] == 8);  // the end of the first of two launches
}

TEST_CASE("what 32 bits cannot index is refused") {
  EmulatedGpu emulated;
  const Shape large{1, 65536, 32768, 1}, small{1, 2, 2, 1};
  float memory = 0;
  const Tensor few(&memory, small), many(&memory, large);
  CHECK_THROWS_WITH_AS(emulated.pooling().upsample_bilinear_forward(few, many, false),
                       doctest::Contains("at most 2147483647 packs"), Error);
  CHECK_THROWS_WITH_AS(emulated.pooling().upsample_bilinear_backward(few, many, false, false),
                       doctest::Contains("at most 2147483647 packs"), Error);
  const Tensor halves(&memory, {1, 32768, 16384, 1});
  CHECK_THROWS_WITH_AS(emulated.pooling().avg_pool_forward({}, many, halves),
                       doctest::Contains("at most 2147483647 packs"), Error);
}

}  // namespace
}  // namespace lockstep::test
