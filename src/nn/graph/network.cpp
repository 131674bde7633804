#include "lockstep/nn/network.h"

#include <unordered_set>

#include "nn/graph/network_impl.h"
#include "nn/layer_support.h"

namespace lockstep {

Network::Network(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Network::~Network() = default;

void Network::set_batch(std::int64_t batch) {
  if (batch != impl_->memory.batch()) impl_->passes.set_batch(batch);
}

std::int64_t Network::planned_batch() const { return impl_->declared->input->shape.batch(); }
const Tensor& Network::input() const { return impl_->declared->input->data; }
const Tensor& Network::input_grad() const { return impl_->declared->input->grad; }

std::vector<std::string> Network::output_names() const {
  std::vector<std::string> names;
  for (const Output& output : impl_->declared->outputs) names.push_back(output.name);
  return names;
}

std::size_t Network::output_index(const std::string& name) const {
  const Outputs& outputs = impl_->declared->outputs;
  return static_cast<std::size_t>(find_output(outputs, name) - outputs.begin());
}

const Tensor& Network::output(std::size_t index) const {
  return impl_->declared->outputs.at(index).value->data;
}
const Tensor& Network::output_grad(std::size_t index) const {
  return impl_->declared->outputs.at(index).value->grad;
}

void Network::forward(const StepContext& context) { impl_->passes.forward(context); }

void Network::backward(const StepContext& context, const AfterLayer& after_layer) {
  LOCKSTEP_CHECK(impl_->passes.training(),
                 "this network was planned without gradients: build it with ",
                 "PlanOptions{.training = true}");
  impl_->passes.backward(context, after_layer);
}

void Network::zero_grad() {
  const ParameterStore& store = parameters();
  backend().fill(Tensor(store.grads(), Shape{1, store.elements()}), 0.0F);
}

void Network::observe(LayerObserver* observer) { impl_->passes.observe(observer); }

LayerWork Network::work(std::size_t layer, Direction direction) const {
  return impl_->memory.work(layer, direction);
}

ParameterStore& Network::parameters() const { return impl_->declared->store; }
Backend& Network::backend() const { return impl_->declared->backend; }
std::span<const std::unique_ptr<Layer>> Network::layers() const { return impl_->declared->layers; }
std::span<BatchNormLayer* const> batch_norms_of(const Network& network) {
  return network.impl_->declared->batch_norms;
}

std::vector<LayerSummary> Network::summary() const {
  std::vector<LayerSummary> rows;
  std::unordered_set<const Parameter*> counted;
  for (const auto& layer : impl_->declared->layers) {
    const Shape& shape = layer->output()->shape;
    LayerSummary row{layer->name(), class_name(*layer), shape};
    for (const Parameter* parameter : layer->parameters()) {
      if (counted.insert(parameter).second) row.parameters += parameter->elements;
    }
    row.output_bytes =
        static_cast<std::size_t>(shape.elements()) * size_of(impl_->memory.activations());
    row.saved_bytes = layer->traits().saved_bytes;
    rows.push_back(std::move(row));
  }
  return rows;
}
std::size_t Network::planned_bytes() const { return impl_->memory.plan().bytes; }
std::size_t Network::offloaded_bytes() const {
  std::size_t bytes = 0;
  for (const RoundTrip& trip : impl_->memory.plan().round_trips) {
    bytes += impl_->memory.plan().buffers[trip.buffer].bytes;
  }
  return bytes;
}

}  // namespace lockstep
