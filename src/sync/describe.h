#pragma once
// Words for reports: who, in which call, why. Every error of the barrier speaks of "replica N".

#include <exception>
#include <functional>
#include <span>
#include <string>

#include "lockstep/sync/barrier.h"

namespace lockstep {

/// Whether two ranks mean the same exchange.
bool same_call(const SyncCall& a, const SyncCall& b);

/// "the backward call 3 of 'encoder.2.0.bn' (64 channels)", "the barrier 'gradient exchange'", "the
/// exchange 2 of gradients (6000 values)".
std::string describe(const SyncCall& call);

/// "replica 1", "replicas 0, 2 and 3".
std::string describe_ranks(std::span<const int> ranks);

/// `what()` of the exception; "an unknown exception" for one that is not a std::exception.
std::string describe(const std::exception_ptr& failure);

/// The same failure with another text. ConfigError, DataError, NonFiniteError and StalledError keep
/// their type, all others become ReplicaError.
std::exception_ptr with_text(const std::exception_ptr& failure, const std::string& text);

/// Calls a callback of the library's user. What it throws has `name` in front of its text.
void call_named(const char* name, const std::function<void()>& callback);

/// "12.3 s".
std::string describe_seconds(double seconds);

}  // namespace lockstep
