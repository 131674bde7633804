#include "lockstep/nn/network.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

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
    const auto bytes = [&](const Shape& shape) {
      return static_cast<std::size_t>(shape.elements()) * size_of(options.activations);
    };
    graph.values.push_back(
        {bytes(value->shape), value->shape.channels(), bytes(value->shape.with_batch(tile))});
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
  graph.several_tiles = options.training && tile < input->shape.batch();
  graph.recompute = options.training && (options.recompute || graph.several_tiles);
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
    if (convolution->can_normalize(backend.convolutions())) convolution->take_over(*batch_norm);
  }
}

void Network::Impl::allocate(const PlanOptions& options) {
  training = options.training;
  if (!training && options.share_memory) join_convolutions_and_batch_norms();
  activations = options.activations;
  const std::int64_t planned = input->shape.batch();
  tile = options.training && options.tile > 0 ? std::min(options.tile, planned) : planned;
  const Graph graph = describe(options);
  for (const GraphLayer& layer : graph.layers) frozen.push_back(layer.frozen);
  plan = plan_memory(graph);
  arena = backend.allocate(plan.bytes);
  auto* memory = static_cast<std::byte*>(arena.data());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (plan.saved[i] >= 0) layers[i]->set_saved(memory + plan.buffers[plan.saved[i]].offset);
    targets.emplace_back(layers[i]->inputs().size());
  }
  prepared.assign(static_cast<std::size_t>(planned) + 1, false);
  declare_gradients();
}

// What meets all images has their gradient parts, too.
void Network::Impl::declare_gradients() {
  gradients.emplace(backend, store, input->shape.batch(), tile);
  std::vector<const Layer*> of_stretch;
  for (const Stretch& stretch : plan.schedule.backward) {
    of_stretch.clear();
    for (const Action& action : stretch.actions) {
      const bool adds = stretch.by_tile && action.kind == ActionKind::kBackward;
      if (adds) of_stretch.push_back(layers[static_cast<std::size_t>(action.layer)].get());
    }
    gradients->add_stretch(of_stretch);
  }
  gradients->reserve();
}

void Network::Impl::set_batch(std::int64_t new_batch) {
  LOCKSTEP_CHECK(new_batch >= 0 && new_batch <= input->shape.batch(), "a batch of ", new_batch,
                 " samples; the network is planned for 0 to ", input->shape.batch());
  batch = new_batch;
  set_views();
  weights.clear();
  prepare({0, std::min(tile, batch)});
  if (batch % tile != 0 && batch > tile) prepare({0, batch % tile});
  if (prepared[static_cast<std::size_t>(batch)]) return;
  backend.convolutions().prepack_conv2d_weights(weights);  // takes the memory for it
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

void Network::forward(const StepContext& context) { impl_->forward(context); }

void Network::backward(const StepContext& context, const AfterLayer& after_layer) {
  LOCKSTEP_CHECK(impl_->training, "this network was planned without gradients: build it with ",
                 "PlanOptions{.training = true}");
  impl_->backward(context, after_layer);
}

void Network::zero_grad() {
  impl_->backend.fill(Tensor(impl_->store.grads(), Shape{1, impl_->store.elements()}), 0.0F);
}

void Network::observe(LayerObserver* observer) { impl_->observer = observer; }

LayerWork Network::work(std::size_t layer, Direction direction) const {
  return impl_->work(layer, direction);
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
