#pragma once
// Networks of other programs that are nearly those of this one, by the names in their files.

#include <string>
#include <vector>

namespace lockstep {

/// Throws DataError that says whose the file is and what to do, where its names are those of such a
/// network: it would be loaded but for the layers that matter. `missing`: tensors of the network
/// that the file lacks; `unexpected`: the reverse.
void check_convention(const std::vector<std::string>& missing,
                      const std::vector<std::string>& unexpected);

}  // namespace lockstep
