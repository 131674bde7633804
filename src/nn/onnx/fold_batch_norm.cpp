// y = gamma * (W*x + b - mean) / sqrt(var + eps) + beta is a convolution again, with weights
// W * scale and bias beta + (b - mean) * scale, scale = gamma / sqrt(var + eps).

#include <algorithm>
#include <cmath>
#include <map>

#include "nn/onnx/graph.h"

namespace lockstep {
namespace {

using Impl = OnnxGraph::Impl;

/// How often every tensor is read; the graph's outputs once more.
std::map<std::string, int> count_readers(const Impl& graph,
                                         const std::vector<std::string>& outputs) {
  std::map<std::string, int> readers;
  for (const std::string& output : outputs) readers[output] = 1;
  for (const OnnxNode& node : graph.nodes) {
    for (const std::string& input : node.inputs) ++readers[input];
  }
  return readers;
}

float epsilon_of(const OnnxNode& norm) {
  constexpr float kDefault = 1e-5F;
  const auto epsilon =
      std::find_if(norm.attributes.begin(), norm.attributes.end(),
                   [](const OnnxAttribute& attribute) { return attribute.name == "epsilon"; });
  return epsilon == norm.attributes.end() ? kDefault : std::get<float>(epsilon->value);
}

/// Whether the nodes' operands but the first are constants.
bool has_constants(const Impl& graph, const OnnxNode& node) {
  return std::all_of(node.inputs.begin() + 1, node.inputs.end(),
                     [&](const std::string& input) { return graph.constants.contains(input); });
}

void fold(Impl& graph, OnnxNode& conv, const OnnxNode& norm) {
  const auto operand = [&](std::size_t input) -> const std::vector<float>& {
    return graph.constants.at(norm.inputs[input]).floats;
  };
  const std::vector<float>&gamma = operand(1), &beta = operand(2), &mean = operand(3),
        &var = operand(4);
  const double epsilon = static_cast<double>(epsilon_of(norm));
  OnnxConstant weight = graph.constants.at(conv.inputs[1]);
  std::vector<float> bias(gamma.size());
  if (conv.inputs.size() > 2) bias = graph.constants.at(conv.inputs[2]).floats;
  const std::size_t each = weight.floats.size() / gamma.size();
  for (std::size_t c = 0; c < gamma.size(); ++c) {
    const double scale =
        static_cast<double>(gamma[c]) / std::sqrt(static_cast<double>(var[c]) + epsilon);
    for (std::size_t i = c * each; i < (c + 1) * each; ++i) {
      weight.floats[i] = static_cast<float>(static_cast<double>(weight.floats[i]) * scale);
    }
    const double shift = static_cast<double>(bias[c]) - static_cast<double>(mean[c]);
    bias[c] = static_cast<float>(static_cast<double>(beta[c]) + shift * scale);
  }
  conv.inputs.resize(3);
  conv.inputs[1] = graph.constant(conv.inputs[1] + ".folded", std::move(weight));
  const OnnxInts channels{static_cast<std::int64_t>(bias.size())};
  conv.inputs[2] = graph.constant(conv.layer + ".bias.folded", {channels, bias, {}});
}

/// What was read under one name is read under another.
using Renamed = std::map<std::string, std::string>;

void rename_inputs(OnnxNode& node, const Renamed& renamed) {
  for (std::string& input : node.inputs) {
    if (const auto name = renamed.find(input); name != renamed.end()) input = name->second;
  }
}

}  // namespace

void fold_batch_norm(Impl& graph, const std::vector<std::string>& outputs) {
  const std::map<std::string, int> readers = count_readers(graph, outputs);
  std::map<std::string, std::size_t> convolutions;  // that a BatchNorm may join, by output
  Renamed renamed;
  std::vector<OnnxNode> nodes;
  for (OnnxNode& node : graph.nodes) {
    rename_inputs(node, renamed);
    const auto conv = node.op_type == "BatchNormalization" ? convolutions.find(node.inputs[0])
                                                           : convolutions.end();
    if (conv != convolutions.end() && has_constants(graph, node)) {
      OnnxNode& folded = nodes[conv->second];
      fold(graph, folded, node);
      if (std::count(outputs.begin(), outputs.end(), node.output) > 0) folded.output = node.output;
      renamed[node.output] = folded.output;
      convolutions.erase(conv);  // who reads its output are those that read the BatchNorm's
      continue;
    }
    if (node.op_type == "Conv" && readers.at(node.output) == 1 && has_constants(graph, node)) {
      convolutions[node.output] = nodes.size();
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

void drop_unread_constants(Impl& graph) {
  const std::map<std::string, int> readers = count_readers(graph, {});
  std::erase_if(graph.constants,
                [&](const auto& constant) { return !readers.contains(constant.first); });
}

}  // namespace lockstep
