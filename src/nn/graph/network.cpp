#include "lockstep/nn/network.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/sync/communicator.h"
#include "nn/graph/network_impl.h"
#include "nn/layer_support.h"
#include "nn/layers/conv2d_layer.h"

namespace lockstep {

Outputs::const_iterator find_output(const Outputs& outputs, const std::string& name) {
  const auto found = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const Output& output) { return output.name == name; });
  if (found != outputs.end()) return found;
  std::string names;
  for (const Output& output : outputs) names += (names.empty() ? "" : ", ") + output.name;
  throw ConfigError(concat("the network has no output '", name, "'; it has ", names));
}

bool Network::Impl::owns(const Value* value) const {
  return std::any_of(values.begin(), values.end(),
                     [&](const auto& own) { return own.get() == value; });
}

std::unordered_set<const Value*> Network::Impl::needed_for(
    std::unordered_set<const Value*> wanted) const {
  wanted.insert(input);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    if (!wanted.contains((*layer)->output())) continue;
    wanted.insert((*layer)->inputs().begin(), (*layer)->inputs().end());
  }
  return wanted;
}

void Network::Impl::leave_out_all_but(const std::vector<std::string>& names) {
  std::unordered_set<const Value*> wanted;
  for (const std::string& name : names) wanted.insert(find_output(outputs, name)->value);
  const std::unordered_set<const Value*> needed = needed_for(std::move(wanted));
  std::erase_if(batch_norms, [&](const Layer* layer) { return !needed.contains(layer->output()); });
  std::erase_if(layers, [&](const auto& layer) { return !needed.contains(layer->output()); });
  const auto rest = std::stable_partition(values.begin(), values.end(), [&](const auto& value) {
    return needed.contains(value.get());
  });
  left_out.assign(std::make_move_iterator(rest), std::make_move_iterator(values.end()));
  values.erase(rest, values.end());
}

// Channels-last; the batch is the planned one.
Graph Network::Impl::describe(const PlanOptions& options) const {
  Graph graph;
  std::unordered_map<const Value*, int> index;
  for (const auto& value : values) {
    index[value.get()] = static_cast<int>(graph.values.size());
    const auto elements = static_cast<std::size_t>(value->shape.elements());
    graph.values.push_back({elements * size_of(options.activations), value->shape.channels()});
  }
  for (const auto& layer : layers) {
    const std::vector<const Parameter*> own = layer->parameters();
    const bool learns = std::any_of(own.begin(), own.end(), [&](const Parameter* parameter) {
      return !options.is_frozen || !options.is_frozen(parameter->name);
    });
    GraphLayer described{
        layer->traits(), {}, index.at(layer->output()), learns, !own.empty() && !learns};
    for (const Value* value : layer->inputs()) described.inputs.push_back(index.at(value));
    graph.layers.push_back(std::move(described));
  }
  graph.input = index.at(input);
  const std::vector<std::string>& given = options.grad_outputs;
  for (const Output& output : outputs) {
    if (!index.contains(output.value)) continue;
    const bool grad =
        given.empty() || std::find(given.begin(), given.end(), output.name) != given.end();
    graph.outputs.push_back({index.at(output.value), grad});
  }
  graph.training = options.training;
  graph.input_grad = options.input_grad;
  graph.share_memory = options.share_memory;
  return graph;
}

// In an evaluation a BatchNorm is a pass over memory, which the convolution before it spares where
// nobody else reads what it writes.
void Network::Impl::join_convolutions_and_batch_norms() {
  std::unordered_map<const Value*, int> readers;
  for (const Output& output : outputs) ++readers[output.value];
  for (const auto& layer : layers) {
    for (const Value* value : layer->inputs()) ++readers[value];
  }
  for (std::size_t i = 1; i < layers.size(); ++i) {
    auto* convolution = dynamic_cast<Conv2dLayer*>(layers[i - 1].get());
    auto* batch_norm = dynamic_cast<BatchNormLayer*>(layers[i].get());
    if (convolution == nullptr || batch_norm == nullptr || batch_norm->state() == nullptr) continue;
    const Value* between = convolution->output();
    if (batch_norm->inputs()[0] != between || readers[between] > 1) continue;
    if (convolution->can_normalize(backend)) convolution->take_over(*batch_norm);
  }
}

void Network::Impl::allocate(const PlanOptions& options) {
  training = options.training;
  if (!training && options.share_memory) join_convolutions_and_batch_norms();
  activations = options.activations;
  const Graph graph = describe(options);
  for (const GraphLayer& layer : graph.layers) frozen.push_back(layer.frozen);
  plan = plan_memory(graph);
  arena = backend.allocate(plan.bytes);
  auto* memory = static_cast<std::byte*>(arena.data());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (plan.saved[i] >= 0) layers[i]->set_saved(memory + plan.buffers[plan.saved[i]].offset);
    targets.emplace_back(layers[i]->inputs().size());
  }
  prepared.assign(static_cast<std::size_t>(input->shape.batch()) + 1, false);
}

Tensor Network::Impl::place(const Placement& placement, const Value& value) const {
  if (placement.buffer < 0) return {};
  auto* memory = static_cast<std::byte*>(arena.data()) + plan.buffers[placement.buffer].offset;
  const auto first = static_cast<std::size_t>(placement.first_channel);
  Tensor tensor(memory + first * size_of(activations), value.shape.with_batch(batch), activations);
  tensor.row_stride = placement.row_stride;
  return tensor;
}

void Network::Impl::set_views() {
  for (std::size_t v = 0; v < values.size(); ++v) {
    values[v]->data = place(plan.data[v], *values[v]);
    values[v]->grad = place(plan.grad[v], *values[v]);
  }
}

void Network::Impl::set_targets() {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (std::size_t k = 0; k < targets[i].size(); ++k) {
      const GradRoute& route = plan.routes[i][k];
      const Value& value = *layers[i]->inputs()[k];
      if (!route.needed) continue;
      if (route.temporary >= 0) {
        targets[i][k] = {place({route.temporary, 0, value.shape.channels()}, value), false};
      } else {
        targets[i][k] = {value.grad, route.accumulate};
      }
    }
  }
}

void Network::Impl::set_batch(std::int64_t new_batch) {
  LOCKSTEP_CHECK(new_batch >= 0 && new_batch <= input->shape.batch(), "a batch of ", new_batch,
                 " samples; the network is planned for 0 to ", input->shape.batch());
  batch = new_batch;
  set_views();
  set_targets();
  weights.clear();
  for (const auto& layer : layers) layer->list_weights(weights);
  if (prepared[static_cast<std::size_t>(batch)]) return;
  for (const auto& layer : layers) layer->prepare(backend, training);
  backend.prepack_conv2d_weights(weights);  // takes the memory for it
  prepared[static_cast<std::size_t>(batch)] = true;
}

Network::Network(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Network::~Network() = default;

void Network::set_batch(std::int64_t batch) {
  if (batch != impl_->batch) impl_->set_batch(batch);
}

std::int64_t Network::planned_batch() const { return impl_->input->shape.batch(); }
const Tensor& Network::input() const { return impl_->input->data; }
const Tensor& Network::input_grad() const { return impl_->input->grad; }

std::vector<std::string> Network::output_names() const {
  std::vector<std::string> names;
  for (const Output& output : impl_->outputs) names.push_back(output.name);
  return names;
}

std::size_t Network::output_index(const std::string& name) const {
  const Outputs& outputs = impl_->outputs;
  return static_cast<std::size_t>(find_output(outputs, name) - outputs.begin());
}

const Tensor& Network::output(std::size_t index) const {
  return impl_->outputs.at(index).value->data;
}
const Tensor& Network::output_grad(std::size_t index) const {
  return impl_->outputs.at(index).value->grad;
}

namespace {

// A rank that meets no other may have a long way to go when another one fails.
void leave_if_failed(const StepContext& context) {
  if (context.communicator != nullptr) context.communicator->leave_if_failed();
}

}  // namespace

void Network::forward(const StepContext& context) {
  impl_->backend.prepack_conv2d_weights(impl_->weights);
  for (std::size_t i = 0; i < impl_->layers.size(); ++i) {
    impl_->observed(i, Direction::kForward, [&] {
      impl_->layers[i]->forward(impl_->backend, context);
      leave_if_failed(context);
    });
  }
}

void Network::backward(const StepContext& context, const AfterLayer& after_layer) {
  LOCKSTEP_CHECK(impl_->training, "this network was planned without gradients: build it with ",
                 "PlanOptions{.training = true}");
  StepContext own = context;
  own.meanwhile = [this, &context] { impl_->compute_deferred_weights(context); };
  impl_->deferred_weights.reset();  // of a pass that failed
  std::size_t left_behind = impl_->layers.size();
  for (std::size_t i = impl_->layers.size(); i-- > 0;) {
    if (impl_->plan.runs_backward[i]) {
      impl_->observed(i, Direction::kBackward, [&] {
        impl_->run_backward(i, own);
        leave_if_failed(context);
      });
    }
    if (!after_layer || impl_->deferred_weights) continue;
    while (left_behind > i) after_layer(--left_behind);
  }
}

// Only where others are waited for is there time to fill. An observer hears a layer's work as that
// layer's.
bool Network::Impl::defers_weights(std::size_t layer, const StepContext& context) const {
  return plan.weights_until[layer] != static_cast<int>(layer) && observer == nullptr &&
         context.communicator != nullptr && context.communicator->size() > 1;
}

void Network::Impl::compute_deferred_weights(const StepContext& context) {
  if (!deferred_weights) return;
  layers[*deferred_weights]->backward_weights(backend, context);
  deferred_weights.reset();
}

void Network::Impl::run_backward(std::size_t i, const StepContext& context) {
  Layer& layer = *layers[i];
  const bool defers = defers_weights(i, context);
  if (!defers && !frozen[i]) layer.backward_weights(backend, context);
  layer.backward(backend, context, targets[i]);
  for (std::size_t k = 0; k < targets[i].size(); ++k) {
    if (plan.routes[i][k].temporary < 0) continue;
    backend.copy(targets[i][k].tensor, layer.inputs()[k]->grad, true);
  }
  if (deferred_weights && plan.weights_until[*deferred_weights] == static_cast<int>(i)) {
    compute_deferred_weights(context);  // nobody was waited for
  }
  if (defers) deferred_weights = i;
}

void Network::zero_grad() {
  impl_->backend.fill(Tensor(impl_->store.grads(), Shape{1, impl_->store.elements()}), 0.0F);
}

void Network::observe(LayerObserver* observer) { impl_->observer = observer; }

LayerWork Network::work(std::size_t layer, Direction direction) const {
  const Layer& at = *impl_->layers.at(layer);
  if (direction == Direction::kForward) return at.forward_work();
  if (!impl_->plan.runs_backward[layer]) return {};
  std::vector<GradTarget> targets = impl_->targets[layer];
  for (std::size_t k = 0; k < targets.size(); ++k) {
    targets[k].accumulate = impl_->plan.routes[layer][k].accumulate;  // whoever does the adding
  }
  return at.backward_work(targets);
}

ParameterStore& Network::parameters() const { return impl_->store; }
Backend& Network::backend() const { return impl_->backend; }
std::span<const std::unique_ptr<Layer>> Network::layers() const { return impl_->layers; }
std::span<BatchNormLayer* const> batch_norms_of(const Network& network) {
  return network.impl_->batch_norms;
}

std::vector<LayerSummary> Network::summary() const {
  std::vector<LayerSummary> rows;
  std::unordered_set<const Parameter*> counted;
  for (const auto& layer : impl_->layers) {
    const Shape& shape = layer->output()->shape;
    LayerSummary row{layer->name(), class_name(*layer), shape};
    for (const Parameter* parameter : layer->parameters()) {
      if (counted.insert(parameter).second) row.parameters += parameter->elements;
    }
    row.output_bytes = static_cast<std::size_t>(shape.elements()) * size_of(impl_->activations);
    row.saved_bytes = layer->traits().saved_bytes;
    rows.push_back(std::move(row));
  }
  return rows;
}
std::size_t Network::planned_bytes() const { return impl_->plan.bytes; }

}  // namespace lockstep
