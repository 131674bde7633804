#include "backend/moments.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"

namespace lockstep {
namespace {

/// Values of one replica, [rows, channels]: channel c has mean `shift` * c and standard deviation 1
/// + c.
std::vector<float> random_rows(std::int64_t rows, std::int64_t channels, float shift, int rank) {
  Rng rng(7, RngPurpose::kTest, static_cast<std::uint64_t>(rank));
  std::vector<float> x(static_cast<std::size_t>(rows * channels));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto c = static_cast<float>(static_cast<std::int64_t>(i) % channels);
    x[i] = shift * c + (1.0F + c) * rng.normal();
  }
  return x;
}

struct Moments {
  long double mean = 0;
  long double m2 = 0;
};

/// Two passes over channel c of all parts together.
Moments two_pass(const std::vector<std::vector<float>>& parts, std::int64_t channels,
                 std::int64_t c) {
  long double sum = 0;
  long double count = 0;
  Moments result;
  for (const auto& part : parts) {
    for (std::size_t i = c; i < part.size(); i += channels, ++count) sum += part[i];
  }
  if (count == 0) return result;
  result.mean = sum / count;
  for (const auto& part : parts) {
    for (std::size_t i = c; i < part.size(); i += channels) {
      result.m2 += (part[i] - result.mean) * (part[i] - result.mean);
    }
  }
  return result;
}

/// Each part's own moments, as a replica would hand them in.
struct LocalSlots {
  std::vector<std::vector<float>> data;
  std::vector<StatSlot> slots;
};

LocalSlots local_moments(const std::vector<std::vector<float>>& parts, std::int64_t channels) {
  LocalSlots result;
  for (const auto& part : parts) {
    auto& slot = result.data.emplace_back(2 * channels);
    for (std::int64_t c = 0; c < channels; ++c) {
      const Moments moments = two_pass({part}, channels, c);
      slot[c] = static_cast<float>(moments.mean);
      slot[channels + c] = static_cast<float>(moments.m2);
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto rows = static_cast<std::int64_t>(parts[i].size()) / channels;
    result.slots.push_back({rows, result.data[i].data()});
  }
  return result;
}

void check_against_two_pass(const std::vector<std::int64_t>& rows, std::int64_t channels,
                            float shift) {
  std::vector<std::vector<float>> parts;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    parts.push_back(random_rows(rows[i], channels, shift, static_cast<int>(i)));
    total += rows[i];
  }
  const LocalSlots local = local_moments(parts, channels);
  std::vector<float> merged(2 * channels, -1.0F);
  CHECK(merge_moments(local.slots, channels, merged.data()) == total);
  for (std::int64_t c = 0; c < channels; ++c) {
    const Moments expected = two_pass(parts, channels, c);
    const auto spread = static_cast<double>(std::sqrt(expected.m2 / total));
    // Each slot's mean is rounded to fp32: that, not the merge, limits the result.
    const double rounding = 1e-7 * (spread + std::abs(static_cast<double>(expected.mean)));
    CHECK(std::abs(static_cast<double>(merged[c] - expected.mean)) <= 2 * rounding);
    const double relative =
        std::abs(static_cast<double>(merged[channels + c] / expected.m2 - 1.0L));
    CHECK(relative <= 1e-6 + 4 * rounding / spread);
  }
}

}  // namespace

TEST_CASE("moments of uneven parts are those of the whole") {
  check_against_two_pass({7}, 3, 1);
  check_against_two_pass({5, 5}, 1, 0);
  check_against_two_pass({40, 3, 1, 17}, 5, 3);
  check_against_two_pass({9, 4, 2, 30, 1, 1, 8, 6}, 300, -2);  // more channels than one block
}

TEST_CASE("a large mean does not destroy the variance") {
  check_against_two_pass({64, 9, 33}, 4, 1e3F);
}

TEST_CASE("empty parts change nothing, bit by bit") {
  const std::int64_t channels = 6;
  const auto a = random_rows(11, channels, 2, 0);
  const auto b = random_rows(4, channels, 2, 1);
  const LocalSlots dense = local_moments({a, b}, channels);
  const LocalSlots holes = local_moments({{}, a, {}, b, {}}, channels);
  std::vector<float> expected(2 * channels);
  std::vector<float> got(2 * channels);
  CHECK(merge_moments(dense.slots, channels, expected.data()) == 15);
  CHECK(merge_moments(holes.slots, channels, got.data()) == 15);
  CHECK(got == expected);

  std::vector<float> none(2 * channels, 5.0F);
  const LocalSlots empty = local_moments({{}, {}}, channels);
  CHECK(merge_moments(empty.slots, channels, none.data()) == 0);
  CHECK(none == std::vector<float>(2 * channels));
}

TEST_CASE("a single part comes back unchanged") {
  const LocalSlots local = local_moments({random_rows(13, 4, 9, 3)}, 4);
  std::vector<float> merged(8);
  merge_moments(local.slots, 4, merged.data());
  CHECK(merged == local.data[0]);
  merge_sums(local.slots, 4, merged.data());
  CHECK(merged == local.data[0]);
}

TEST_CASE("one row per part still has a variance over all parts") {
  const std::vector<std::vector<float>> parts{{1}, {2}, {6}};
  const LocalSlots local = local_moments(parts, 1);
  float merged[2];
  CHECK(merge_moments(local.slots, 1, merged) == 3);
  CHECK(merged[0] == doctest::Approx(3));
  CHECK(merged[1] == doctest::Approx(4 + 1 + 9));
}

TEST_CASE("sums are added in double and in order") {
  const std::int64_t channels = 70;  // 2 * 70 is more than one block
  std::vector<std::vector<float>> data;
  std::vector<StatSlot> slots;
  for (int rank = 0; rank < 5; ++rank) data.push_back(random_rows(2, channels, 1e4F, rank));
  for (int rank = 0; rank < 5; ++rank) slots.push_back({rank + 1, data[rank].data()});
  slots.push_back({0, nullptr});
  std::vector<float> merged(2 * channels);
  CHECK(merge_sums(slots, channels, merged.data()) == 15);
  for (std::int64_t i = 0; i < 2 * channels; ++i) {
    double sum = 0;
    for (const auto& part : data) sum += static_cast<double>(part[i]);
    CHECK(merged[i] == static_cast<float>(sum));
  }
}

}  // namespace lockstep
