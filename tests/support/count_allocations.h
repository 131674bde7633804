#pragma once
// Counts what this executable allocates by `new`.

namespace lockstep::test {

long allocation_count();

}  // namespace lockstep::test
