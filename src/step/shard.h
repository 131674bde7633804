#pragma once
// Which samples of a global batch a rank works on: torch.chunk's rule, as DataParallel scatters.

#include <cstdint>

namespace lockstep {

struct Shard {
  std::int64_t begin = 0;  // first sample
  std::int64_t count = 0;  // may be 0
};

/// Part `part` of `parts`: ceil(batch / parts) samples each until they are used up.
Shard shard_of(std::int64_t batch, int parts, int part);

}  // namespace lockstep
