#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "io/atomic_file.h"
#include "nn/graph/declared_network.h"
#include "nn/onnx/graph.h"

namespace lockstep {
namespace {

const char* const kInput = "image";

/// What is exported, whatever the size of the images.
struct Source {
  Source(const Model& exported, const NormLayer& norm_layer, const TensorMap& state_dict,
         const OnnxOptions& onnx_options)
      : model(exported), norm(norm_layer), weights(state_dict), options(onnx_options) {}

  const Model& model;
  const NormLayer& norm;
  const TensorMap& weights;
  const OnnxOptions& options;
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 1);
  ParameterStore store;
};

/// The model declared for images of one size, and its graph.
class Declared {
 public:
  Declared(Source& source, std::int64_t height, std::int64_t width);

  OnnxGraph::Impl graph;
  Shape input;                 // channels last
  std::vector<Shape> outputs;  // in the order of the options

 private:
  void export_layers(const std::vector<const Value*>& to);
  void name_output(const Value* value, const std::string& name);

  NetworkBuilder net_;
};

Declared::Declared(Source& source, std::int64_t height, std::int64_t width)
    : graph{.backend = *source.backend, .fixed_size = source.options.height > 0},
      net_(*source.backend, source.store, source.norm) {
  Value* x = net_.input({1, height, width, source.options.channels});
  const Outputs declared = source.model(net_, x, source.norm);
  const std::vector<std::string>& names = source.options.outputs;
  std::vector<const Value*> values;
  for (const std::string& name : names) {
    values.push_back(find_output(declared, name)->value);
    outputs.push_back(values.back()->shape);
  }
  input = x->shape;
  if (!source.store.allocated()) {
    source.store.allocate(*source.backend);
    load_state_dict(source.weights, source.store, *source.backend, true);
  }
  graph.names = {names.begin(), names.end()};
  graph.names.insert(kInput);
  graph.tensors[x] = kInput;
  export_layers(values);
  for (std::size_t i = 0; i < names.size(); ++i) name_output(values[i], names[i]);
}

void Declared::export_layers(const std::vector<const Value*>& values) {
  OnnxGraph to(graph);
  for (const Layer* layer : net_.layers_to(values)) {
    graph.layer = layer;
    graph.tensors[layer->output()] = layer->export_onnx(to);
  }
}

void Declared::name_output(const Value* value, const std::string& name) {
  const std::string tensor = graph.tensors.at(value);
  // The input itself, where layers do nothing in evaluation, and another output cannot have one
  // more name.
  const bool named = tensor == kInput || graph.outputs.contains(tensor);
  const std::string last = named ? OnnxGraph(graph).add("Identity", {tensor}) : tensor;
  for (OnnxNode& node : graph.nodes) {
    std::replace(node.inputs.begin(), node.inputs.end(), last, name);
    if (node.output == last) node.output = name;
  }
  for (auto& [other, its_tensor] : graph.tensors) {
    if (its_tensor == last) its_tensor = name;
  }
  graph.outputs.insert(name);
}

bool same_constants(const OnnxNode& node, const OnnxGraph::Impl& a, const OnnxGraph::Impl& b) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](const std::string& input) {
    const auto constant = a.constants.find(input);
    return constant == a.constants.end() || constant->second == b.constants.at(input);
  });
}

// A layer that was declared by numbers which depend on the image's size would be right for images
// of one size only; then so would what it adds to the graph for two sizes differ.
void check_independent_of_size(const Declared& one, const Declared& other) {
  const std::vector<OnnxNode>&a = one.graph.nodes, &b = other.graph.nodes;
  const std::size_t count = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (same < count && a[same] == b[same] && same_constants(a[same], one.graph, other.graph)) {
    ++same;
  }
  if (same == a.size() && same == b.size()) return;
  const OnnxNode& node = same < a.size() ? a[same] : b[same];
  throw Error(lockstep::concat(
      node.layer, " (", node.layer_class, "): depends on the image's size, so one file cannot ",
      "be for images of any size; fix it with OnnxOptions::height and width (lockstep export onnx ",
      "--size HxW), or for upsampling to the size of another value name that value"));
}

/// `other`: for images of another size; null where the size is fixed.
OnnxPort port_of(const std::string& name, const Declared& one, const Shape& shape,
                 const Declared* other, const Shape& other_shape) {
  OnnxPort port{name, {"N", shape.channels()}};
  for (int axis = 1; axis + 1 < shape.rank(); ++axis) {
    const auto is = [&](std::int64_t extent, std::int64_t other_extent) {
      return shape[axis] == extent && other_shape[axis] == other_extent;
    };
    if (other == nullptr || shape[axis] == other_shape[axis]) {
      port.extents.emplace_back(shape[axis]);
    } else if (is(one.input.height(), other->input.height())) {
      port.extents.emplace_back("H");
    } else if (is(one.input.width(), other->input.width())) {
      port.extents.emplace_back("W");
    } else {
      port.extents.emplace_back(lockstep::concat(name, "_", axis));
    }
  }
  return port;
}

void check_options(const OnnxOptions& options) {
  const std::int64_t divisor = options.size_divisor;
  LOCKSTEP_CHECK(options.channels > 0 && divisor > 0, "images need channels, got ",
                 options.channels, ", and the size divisor is at least 1, got ", divisor);
  LOCKSTEP_CHECK((options.height > 0) == (options.width > 0) && options.height >= 0 &&
                     options.height % divisor == 0 && options.width % divisor == 0,
                 "the images' size must be of multiples of ", divisor,
                 ", or 0x0 for any size, got ", options.height, "x", options.width);
  const std::set<std::string> names(options.outputs.begin(), options.outputs.end());
  LOCKSTEP_CHECK(!names.empty() && names.size() == options.outputs.size(),
                 "expected the names of different outputs, at least one, got ",
                 options.outputs.size(), " of which ", names.size(), " are different");
}

ProtobufMessage file_of(Source& source) {
  const OnnxOptions& options = source.options;
  const bool fixed = options.height > 0;
  // Two sizes with no extent in common, also after halving it a few times.
  const std::int64_t unit =
      (64 + options.size_divisor - 1) / options.size_divisor * options.size_divisor;
  Declared one(source, fixed ? options.height : unit, fixed ? options.width : 2 * unit);
  std::optional<Declared> other;
  if (!fixed) {
    other.emplace(source, 5 * unit, 3 * unit);
    check_independent_of_size(one, *other);
  }
  if (options.fold_batch_norm) fold_batch_norm(one.graph, options.outputs);
  drop_unread_constants(one.graph);
  const Declared* second = fixed ? nullptr : &*other;
  std::vector<OnnxPort> outputs;
  for (std::size_t i = 0; i < options.outputs.size(); ++i) {
    outputs.push_back(port_of(options.outputs[i], one, one.outputs[i], second,
                              fixed ? Shape{} : other->outputs[i]));
  }
  return onnx_file(one.graph.nodes, one.graph.constants,
                   port_of(kInput, one, one.input, second, fixed ? Shape{} : other->input), outputs,
                   options.metadata);
}

}  // namespace

void save_onnx(const std::filesystem::path& path, const Model& model, const NormLayer& norm,
               const TensorMap& weights, const OnnxOptions& options) {
  LOCKSTEP_CHECK(model != nullptr, "there is no model to export");
  check_options(options);
  Source source(model, norm, weights, options);
  const ProtobufMessage file = file_of(source);
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  LOCKSTEP_CHECK(file.bytes().size() <= kMost, path.string(), ": the network takes ",
                 file.bytes().size(), " bytes; an ONNX file of one part holds ", kMost);
  write_file_atomically(path, file.bytes());
}

}  // namespace lockstep
