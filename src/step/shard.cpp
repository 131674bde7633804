#include "step/shard.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

Shard shard_of(std::int64_t batch, int parts, int part) {
  const std::int64_t size = (batch + parts - 1) / parts;
  const std::int64_t begin = std::min(batch, part * size);
  return {begin, std::min(size, batch - begin)};
}

std::vector<std::int64_t> chunk_sizes(std::int64_t batch, int parts) {
  LOCKSTEP_CHECK(batch >= 0 && parts > 0, "expected a batch >= 0 over at least 1 part, got ", batch,
                 " over ", parts);
  std::vector<std::int64_t> sizes;
  for (int part = 0; part < parts; ++part) sizes.push_back(shard_of(batch, parts, part).count);
  return sizes;
}

}  // namespace lockstep
