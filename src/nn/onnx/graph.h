#pragma once
// The graph that layers export themselves to, as data: what is folded, compared and written.

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/onnx_file.h"
#include "lockstep/nn/onnx.h"

namespace lockstep {

struct OnnxGraph::Impl {
  Backend& backend;
  bool fixed_size = false;
  std::vector<OnnxNode> nodes = {};  // every one behind those whose output it reads
  std::map<std::string, OnnxConstant> constants = {};
  std::unordered_map<const Value*, std::string> tensors = {};
  std::set<std::string> names = {};    // that are taken
  std::set<std::string> outputs = {};  // that have their names already
  const Layer* layer = nullptr;        // that exports itself

  /// `name`, or with a number behind it where it is taken; taken from then on.
  std::string unique(const std::string& name);
  /// The name of an equal constant that has `name` or one made from it, else of a new one.
  std::string constant(const std::string& name, OnnxConstant contents);
};

/// Takes every BatchNormalization that alone reads the output of a Conv into that Conv, in double.
/// `outputs`: of the graph, which stay.
void fold_batch_norm(OnnxGraph::Impl& graph, const std::vector<std::string>& outputs);

/// Removes constants that no node reads.
void drop_unread_constants(OnnxGraph::Impl& graph);

}  // namespace lockstep
