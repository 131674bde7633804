#pragma once
// Which layer a norm layer's mode asks for.

#include <memory>
#include <string>

#include "lockstep/nn/network.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// A call of a norm layer as a network knows it.
struct NormRequest {
  std::string name;
  Value* x = nullptr;
  Value* y = nullptr;
  const NormLayer& norm;
  const NormCall& call;
  int call_index = 0;  // of this BatchNorm call in the network's forward order
};

/// Its layer; parameters and running statistics come from the store.
std::unique_ptr<Layer> make_norm(const NormRequest& request, ParameterStore& store);

}  // namespace lockstep
