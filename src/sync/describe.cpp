#include "sync/describe.h"

#include <cstdio>
#include <cstring>

#include "core/words.h"
#include "lockstep/core/check.h"

namespace lockstep {

bool same_call(const SyncCall& a, const SyncCall& b) {
  return a.direction == b.direction && a.index == b.index && a.channels == b.channels &&
         (a.layer == b.layer || std::strcmp(a.layer, b.layer) == 0);
}

std::string describe(const SyncCall& call) {
  if (call.direction == Direction::kOther && call.channels == 0) {
    return concat("the barrier '", call.layer, "'");
  }
  if (call.direction == Direction::kOther) {
    return concat("the exchange ", call.index, " of ", call.layer, " (", call.channels, " values)");
  }
  return concat("the ", to_string(call.direction), " call ", call.index, " of '", call.layer, "' (",
                call.channels, " channels)");
}

std::string describe_ranks(std::span<const int> ranks) {
  return concat(ranks.size() == 1 ? "replica " : "replicas ", enumerated(ranks));
}

std::string describe(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown exception";
  }
}

std::exception_ptr with_text(const std::exception_ptr& failure, const std::string& text) {
  try {
    std::rethrow_exception(failure);
  } catch (const ConfigError&) {
    return std::make_exception_ptr(ConfigError(text));
  } catch (const DataError&) {
    return std::make_exception_ptr(DataError(text));
  } catch (const NonFiniteError&) {
    return std::make_exception_ptr(NonFiniteError(text));
  } catch (const StalledError&) {
    return std::make_exception_ptr(StalledError(text));
  } catch (...) {
    return std::make_exception_ptr(ReplicaError(text));
  }
}

void call_named(const char* name, const std::function<void()>& callback) {
  try {
    callback();
  } catch (...) {
    const std::exception_ptr failure = std::current_exception();
    std::rethrow_exception(with_text(failure, concat(name, ": ", describe(failure))));
  }
}

std::string describe_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

}  // namespace lockstep
