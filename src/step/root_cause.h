#pragma once
// From what every rank threw to the one error that the caller gets.

#include <exception>
#include <span>
#include <string>

#include "lockstep/sync/world.h"

namespace lockstep {

/// The error to report for the first failure `cause` of a group; `thrown`: by this process's
/// ranks. When one rank alone threw it, its
/// text is preceded by "replica 2 (cpu:2): "; when several did (a mismatch all learn of) or none
/// (the watchdog), the text names the replicas itself and stays as it is. ConfigError, DataError,
/// NonFiniteError and StalledError keep their type, all others become ReplicaError. `remark` is
/// added at the end.
std::exception_ptr attribute_failure(const std::exception_ptr& cause,
                                     std::span<const std::exception_ptr> thrown,
                                     const RankLayout& layout, const std::string& remark);

}  // namespace lockstep
