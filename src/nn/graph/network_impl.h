#pragma once
// A built network: what its builder declared, with memory and passes.

#include <memory>

#include "nn/graph/declared_network.h"
#include "nn/graph/passes.h"
#include "nn/graph/planned_memory.h"

namespace lockstep {

struct Network::Impl {
  Impl(std::unique_ptr<DeclaredNetwork> network, const PlanOptions& options)
      : declared(std::move(network)),
        memory(*declared, options),
        passes(*declared, memory, options.training) {}

  const std::unique_ptr<DeclaredNetwork> declared;
  PlannedMemory memory;
  Passes passes;
};

}  // namespace lockstep
