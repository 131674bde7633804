#pragma once
// Keys that earlier versions had. Who still writes one is told what to use instead; a run that was
// trained with one is read and resumed without it.

#include <algorithm>
#include <string_view>

namespace lockstep {

struct RemovedKey {
  std::string_view path;
  std::string_view instead;  // a hint: what to do about it
};

/// A key goes here only if it never changed more than how numbers are rounded: a run resumes
/// without it.
constexpr RemovedKey kRemovedKeys[] = {
    {"run.metrics_file", "leave it out: scalars.json and timing.jsonl of the run have its numbers"},
    {"run.bf16_convolutions",
     "write `precision = \"bf16\"`: convolutions of bf16 tensors multiply bf16 numbers where that "
     "is "
     "faster"},
};

/// Null where there was no such key.
inline const RemovedKey* removed_key(std::string_view path) {
  const auto* found = std::ranges::find(kRemovedKeys, path, &RemovedKey::path);
  return found == std::ranges::end(kRemovedKeys) ? nullptr : found;
}

}  // namespace lockstep
