#include "lockstep/data/loader.h"
#include "oracle/golden.h"

namespace lockstep::oracle {

TEST_CASE("samples are dealt to ranks as PyTorch's DistributedSampler deals them") {
  const auto golden = load_golden("samplers");
  if (!golden) return;
  const nlohmann::json cases = golden->metadata("cases");
  CHECK(cases.size() == 60);
  for (const nlohmann::json& c : cases) {
    CAPTURE(c.dump());
    const DistributedSampler sampler(
        c["samples"],
        {.ranks = c["ranks"], .rank = c["rank"], .shuffle = false, .drop_last = c["drop_last"]});
    CHECK(sampler.indices(0) == c["indices"].get<std::vector<std::int64_t>>());
    CHECK(sampler.size() == c["size"].get<std::int64_t>());
  }
}

}  // namespace lockstep::oracle
