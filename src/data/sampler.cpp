#include "data/sampler.h"

#include <numeric>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"

namespace lockstep {

void epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch,
                 std::vector<std::int64_t>& order) {
  LOCKSTEP_CHECK(count >= 0 && count < (std::int64_t{1} << 32), "a data set of ", count,
                 " samples");
  order.resize(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return;
  Rng rng(seed, RngPurpose::kShuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[rng.below(static_cast<std::uint32_t>(i))]);
  }
}

}  // namespace lockstep
