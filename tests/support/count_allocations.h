#pragma once
// Counts what this executable allocates by `new`.

#include <cstddef>

namespace lockstep::test {

long allocation_count();

/// Bytes of the largest one since the last call.
std::size_t largest_allocation();

}  // namespace lockstep::test
