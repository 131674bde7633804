#include "run/exit_code.h"

#include "lockstep/core/check.h"

namespace lockstep {

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return kExitUsage;
  if (dynamic_cast<const DataError*>(&error) != nullptr) return kExitData;
  if (dynamic_cast<const NonFiniteError*>(&error) != nullptr) return kExitNonFinite;
  if (dynamic_cast<const ReplicaError*>(&error) != nullptr) return kExitReplica;
  return kExitFailure;
}

}  // namespace lockstep
