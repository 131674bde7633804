// Sums of fp32 values in fp32 against the same sums in double.

#include "kernels/primitives/compensated_sum.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace lockstep::gpu {
namespace {

constexpr double kUnit = 0x1p-24;  // of fp32: half a unit in the last place

TEST_CASE("a compensated sum keeps what fp32 rounds away") {
  CompensatedSum sum;
  double plain = 0, size = 0;
  float narrow = 0;
  constexpr int kTerms = 100'000;
  for (int i = 1; i <= kTerms; ++i) {
    const float value = 1.0F / static_cast<float>(i) - 0.5F * static_cast<float>(i % 3);
    sum.add(value), plain += value, size += std::abs(value), narrow += value;
  }
  // The worst case is kTerms times as much: roundings have both signs.
  const double bound = 4.0 * kTerms * kUnit * kUnit * size;
  CHECK(bound < 1e-4);
  CHECK(std::abs(sum.value() - plain) <= bound);
  CHECK(std::abs(narrow - plain) > 1e-2);
}

TEST_CASE("what cancels leaves what was small beside it") {
  CompensatedSum sum;
  for (const float value : {1e8F, 0.25F, -1e8F, 0x1p-20F}) sum.add(value);
  CHECK(sum.value() == 0.25 + 0x1p-20);
  const CompensatedSum normal = sum.normalized();
  CHECK(normal.sum == 0.25F + 0x1p-20F);
  CHECK(normal.rest == 0);
}

TEST_CASE("products are added exactly") {
  CompensatedSum sum;
  double plain = 0;
  for (int i = 0; i < 1000; ++i) {
    const float a = 1.0F + static_cast<float>(i) * 0x1p-20F,
                b = 3.0F - static_cast<float>(i) * 0x1p-21F;
    sum.add_product(a, b), plain += static_cast<double>(a) * b;
  }
  CHECK(std::abs(sum.value() - plain) <= 1000 * kUnit * kUnit * plain);
}

TEST_CASE("sums of sums are sums of everything") {
  CompensatedSum left, right, both;
  for (const float value : {1e7F, 0.125F}) left.add(value), both.add(value);
  for (const float value : {-1e7F, 0x1p-18F}) right.add(value), both.add(value);
  left.add(right);
  CHECK(left.value() == both.value());
  CHECK(left.value() == 0.125 + 0x1p-18);
}

TEST_CASE("what is not finite stays so") {
  const float infinity = std::numeric_limits<float>::infinity();
  CompensatedSum sum;
  for (const float value : {1.0F, infinity, 2.0F}) sum.add(value);
  CHECK(sum.value() == infinity);
  CHECK(sum.normalized().sum == infinity);
  CHECK(sum.normalized().rest == 0);
  sum.add(-infinity);
  CHECK(std::isnan(sum.value()));
}

}  // namespace
}  // namespace lockstep::gpu
