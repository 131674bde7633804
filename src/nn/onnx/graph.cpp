#include "nn/onnx/graph.h"

#include <utility>

#include "nn/layer_support.h"

namespace lockstep {

namespace {

/// "name", "name_2", "name_3", ...
std::string numbered(const std::string& name, int number) {
  return number == 1 ? name : lockstep::concat(name, "_", number);
}

}  // namespace

std::string OnnxGraph::Impl::unique(const std::string& name) {
  int number = 1;
  while (!names.insert(numbered(name, number)).second) ++number;
  return numbered(name, number);
}

std::string OnnxGraph::Impl::constant(const std::string& name, OnnxConstant contents) {
  for (int number = 1; names.contains(numbered(name, number)); ++number) {
    const auto known = constants.find(numbered(name, number));
    if (known != constants.end() && known->second == contents) return known->first;
  }
  return constants.emplace(unique(name), std::move(contents)).first->first;
}

const std::string& OnnxGraph::tensor(const Value* value) const {
  const auto found = impl_.tensors.find(value);
  LOCKSTEP_CHECK(found != impl_.tensors.end(), impl_.layer->name(), ": needs the value of '",
                 value->name, "', which does not lead to the output that is exported");
  return found->second;
}

std::string OnnxGraph::add(const std::string& op_type, const std::vector<std::string>& inputs,
                           const std::vector<OnnxAttribute>& attributes) {
  const std::string output = impl_.unique(impl_.layer->name() + "/" + op_type);
  impl_.nodes.push_back(
      {op_type, inputs, output, attributes, impl_.layer->name(), class_name(*impl_.layer)});
  return output;
}

std::string OnnxGraph::floats(const std::string& name, const OnnxInts& extents,
                              const std::vector<float>& values) {
  return impl_.constant(impl_.layer->name() + "." + name, {extents, values, {}});
}

std::string OnnxGraph::ints(const std::string& name, const OnnxInts& extents,
                            const OnnxInts& values) {
  return impl_.constant(impl_.layer->name() + "." + name, {extents, {}, values});
}

std::string OnnxGraph::parameter(const Parameter& parameter, const OnnxInts& extents) {
  OnnxInts own = extents;
  for (int axis = 0; extents.empty() && axis < parameter.shape.rank(); ++axis) {
    own.push_back(parameter.shape[axis]);
  }
  return impl_.constant(parameter.name,
                        {std::move(own), read(parameter.value, parameter.elements), {}});
}

std::vector<float> OnnxGraph::read(const float* device_memory, std::int64_t elements) const {
  std::vector<float> values(static_cast<std::size_t>(elements));
  const Tensor tensor(const_cast<float*>(device_memory), Shape{1, elements});
  impl_.backend.download(values.data(), tensor);
  impl_.backend.synchronize();
  return values;
}

bool OnnxGraph::fixed_size() const { return impl_.fixed_size; }

}  // namespace lockstep
