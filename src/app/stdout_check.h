#pragma once
// What is printed may not arrive: a disk is full, a reader has gone.

#include <exception>

namespace lockstep {

/// Hands over what stdout still buffers, and returns `exit_code`. Where that or an earlier write
/// has failed, a line on stderr says so, and kExitFailure takes the place of kExitDone. A reader
/// that has gone (`| head -1`) wanted no more: no failure. `earlier`: the errno of such a write,
/// where it is known.
int finish_stdout(int exit_code, int earlier = 0);

/// The errno of a write to stdout that failed, of what fmt::print throws then; 0: `error` is
/// another one.
int stdout_failure(const std::exception& error);

}  // namespace lockstep
