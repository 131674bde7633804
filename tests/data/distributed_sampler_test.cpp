#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

/// How often each sample comes in an epoch, over all ranks.
std::map<std::int64_t, int> dealt(std::int64_t samples, DistributedSamplerOptions options,
                                  std::int64_t epoch) {
  std::map<std::int64_t, int> times;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    const DistributedSampler sampler(samples, options);
    const std::vector<std::int64_t> indices = sampler.indices(epoch);
    CHECK(static_cast<std::int64_t>(indices.size()) == sampler.size());
    for (const std::int64_t index : indices) ++times[index];
  }
  return times;
}

}  // namespace

TEST_CASE("every sample comes once; some twice to fill up, or not at all") {
  const auto padded = dealt(10, {.ranks = 4}, 0);
  CHECK(padded.size() == 10);
  CHECK(std::count_if(padded.begin(), padded.end(), [](auto& each) { return each.second == 2; }) ==
        2);
  const auto cut = dealt(10, {.ranks = 4, .drop_last = true}, 0);
  CHECK(cut.size() == 8);
  const auto few = dealt(2, {.ranks = 5}, 0);
  CHECK(few.at(0) + few.at(1) == 5);
}

TEST_CASE("samples are dealt one by one, and the first ones come again to fill up") {
  const auto dealt_to = [](int rank, bool drop_last) {
    return DistributedSampler(7,
                              {.ranks = 3, .rank = rank, .shuffle = false, .drop_last = drop_last})
        .indices(0);
  };
  using Indices = std::vector<std::int64_t>;
  CHECK(dealt_to(0, false) == Indices{0, 3, 6});
  CHECK(dealt_to(1, false) == Indices{1, 4, 0});
  CHECK(dealt_to(2, false) == Indices{2, 5, 1});
  CHECK(dealt_to(0, true) == Indices{0, 3});
  CHECK(dealt_to(2, true) == Indices{2, 5});
}

TEST_CASE("the order is a function of seed and epoch") {
  const DistributedSampler sampler(100, {.ranks = 2, .rank = 1, .seed = 3});
  const DistributedSampler other(100, {.ranks = 2, .rank = 1, .seed = 4});
  CHECK(sampler.indices(7) == sampler.indices(7));
  CHECK(sampler.indices(7) != sampler.indices(8));
  CHECK(sampler.indices(7) != other.indices(7));
}

TEST_CASE("ranks that are not there") {
  CHECK_THROWS_AS(DistributedSampler(10, {.ranks = 2, .rank = 2}), Error);
  CHECK_THROWS_AS(DistributedSampler(10, {.ranks = 2, .rank = -1}), Error);
  CHECK_THROWS_AS(DistributedSampler(0, {}), Error);
}

}  // namespace lockstep
