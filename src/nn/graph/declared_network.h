#pragma once
// What a NetworkBuilder declares: layers in execution order, and the values between them. Memory
// (planned_memory.h) and passes (passes.h) come to it when it is built; its layers stay as they
// are then.

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/nn/network.h"
#include "nn/norms/batch_norm_layer.h"

namespace lockstep {

/// Throws Error naming the outputs when there is none of that name.
Outputs::const_iterator find_output(const Outputs& outputs, const std::string& name);

struct DeclaredNetwork {
  DeclaredNetwork(Backend& backend_, ParameterStore& store_, const NormLayer& norm_)
      : backend(backend_), store(store_), norm(norm_) {}

  /// Whether the value is of this network's builder.
  bool owns(const Value* value) const;
  /// The values that lead to these, with them and the input.
  std::unordered_set<const Value*> needed_for(std::unordered_set<const Value*> wanted) const;
  /// Takes out the layers that no output of these names needs.
  void leave_out_all_but(const std::vector<std::string>& names);
  /// Lets convolutions normalise where they may. Without a backward pass.
  void join_convolutions_and_batch_norms(DType activations);

  Backend& backend;
  ParameterStore& store;
  const NormLayer norm;
  std::vector<NetworkBuilder::NormConversion::Convert> norm_conversions;  // the outermost first
  std::vector<std::unique_ptr<Value>> values;
  std::unordered_set<const Value*> written;      // the input, and what the layers write
  std::vector<std::unique_ptr<Value>> left_out;  // which outputs may still name
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<BatchNormLayer*> batch_norms;
  Value* input = nullptr;  // its shape has the planned batch
  Outputs outputs;
};

}  // namespace lockstep
