#include <doctest/doctest.h>

#include "lockstep/backend/convolutions.h"
#include "lockstep/backend/pooling.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

ConvGeometry conv(std::int64_t in, std::int64_t out, std::int64_t kernel) {
  ConvGeometry g;
  g.in_channels = in;
  g.out_channels = out;
  g.kernel_h = g.kernel_w = kernel;
  return g;
}

}  // namespace

TEST_CASE("convolution shapes follow PyTorch's formula") {
  ConvGeometry same = conv(3, 16, 3);
  same.padding_h = same.padding_w = 1;
  CHECK(same.output_shape({2, 45, 60, 3}) == Shape{2, 45, 60, 16});
  CHECK(same.weight_shape() == Shape{16, 3, 3, 3});
  CHECK(same.weight_elements() == 432);

  const ConvGeometry uneven{4, 6, 3, 5, 2, 1, 0, 2, 1, 2, 2};
  CHECK(uneven.output_shape({1, 13, 15, 4}) == Shape{1, 6, 11, 6});
  CHECK(uneven.weight_shape() == Shape{6, 2, 3, 5});
  CHECK(conv(1, 1, 3).output_shape({1, 3, 3, 1}) == Shape{1, 1, 1, 1});
  CHECK(same.output_shape({0, 45, 60, 3}) == Shape{0, 45, 60, 16});
}

TEST_CASE("impossible convolutions are refused") {
  CHECK_THROWS_AS(conv(1, 1, 3).output_shape({1, 2, 3, 1}), Error);
  CHECK_THROWS_AS(conv(2, 1, 1).output_shape({1, 2, 3, 1}), Error);
  CHECK_THROWS_AS(conv(2, 1, 1).output_shape({2, 3, 2}), Error);
  CHECK_NOTHROW(conv(2, 4, 3).check());
  CHECK_THROWS_AS(conv(0, 4, 3).check(), Error);
  CHECK_THROWS_AS(conv(2, 4, 0).check(), Error);
  ConvGeometry grouped = conv(4, 6, 3);
  grouped.groups = 4;
  CHECK_THROWS_AS(grouped.check(), Error);
  ConvGeometry padded = conv(4, 6, 3);
  padded.padding_w = -1;
  CHECK_THROWS_AS(padded.check(), Error);
  ConvGeometry strided = conv(4, 6, 3);
  strided.stride_h = 0;
  CHECK_THROWS_AS(strided.check(), Error);
  ConvGeometry dilated = conv(4, 6, 3);
  dilated.dilation_w = 0;
  CHECK_THROWS_AS(dilated.check(), Error);
}

TEST_CASE("pooling shapes are floored; impossible windows are refused") {
  CHECK(PoolGeometry{}.output_shape({2, 45, 61, 16}) == Shape{2, 22, 30, 16});
  const PoolGeometry overlapping{3, 3, 2, 2, 1, 1};
  CHECK(overlapping.output_shape({1, 7, 8, 5}) == Shape{1, 4, 4, 5});
  CHECK_NOTHROW(overlapping.check());
  CHECK_THROWS_AS(PoolGeometry{}.output_shape({1, 1, 4, 3}), Error);
  CHECK_THROWS_AS((PoolGeometry{2, 2, 2, 2, 2, 0}.check()), Error);
  CHECK_NOTHROW(PoolGeometry{16, 16, 1, 1, 0, 0}.check());  // an average of a whole map
  CHECK_THROWS_AS((PoolGeometry{0, 2, 1, 1, 0, 0}.check()), Error);
  CHECK_THROWS_AS((PoolGeometry{2, 2, 0, 1, 0, 0}.check()), Error);
  constexpr std::int64_t kHuge = std::int64_t{1} << 32;  // its square is no number, or 0
  CHECK_THROWS_AS((PoolGeometry{kHuge, kHuge, 1, 1, kHuge / 2, kHuge / 2}.check()), Error);
}

}  // namespace lockstep
