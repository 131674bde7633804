#pragma once
// What NetworkBuilder fills and Network runs.

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/nn/network.h"
#include "nn/graph/liveness.h"
#include "nn/graph/tile_gradients.h"
#include "nn/norms/batch_norm_layer.h"

namespace lockstep {

/// Throws Error naming the outputs when there is none of that name.
Outputs::const_iterator find_output(const Outputs& outputs, const std::string& name);

/// Some of a batch, in order.
struct Images {
  std::int64_t first = 0, count = 0;
};

struct Network::Impl {
  Impl(Backend& backend_, ParameterStore& store_, const NormLayer& norm_)
      : backend(backend_), store(store_), norm(norm_) {}

  /// Whether the value is of this network's builder.
  bool owns(const Value* value) const;
  /// The values that lead to these, with them and the input.
  std::unordered_set<const Value*> needed_for(std::unordered_set<const Value*> wanted) const;
  /// Takes out the layers that no output of these names needs.
  void leave_out_all_but(const std::vector<std::string>& names);
  /// Lets convolutions normalise where they may. Without a backward pass.
  void join_convolutions_and_batch_norms();
  /// Plans the memory, allocates it and gives layers their saved memory.
  void allocate(const PlanOptions& options);
  void set_batch(std::int64_t batch);
  /// One layer's share of a pass, within the observer's hearing.
  template <typename Pass>
  void observed(std::size_t layer, Direction direction, const Pass& pass) {
    if (observer != nullptr) observer->begin(layer, direction);
    pass();
    if (observer != nullptr) observer->end(layer, direction);
  }
  void forward(const StepContext& context);
  void backward(const StepContext& context, const AfterLayer& after_layer);
  LayerWork work(std::size_t layer, Direction direction);

  Backend& backend;
  ParameterStore& store;
  const NormLayer norm;
  std::vector<std::function<void(NormLayer&)>> norm_conversions;  // the outermost first
  std::vector<std::unique_ptr<Value>> values;
  std::unordered_set<const Value*> written;      // the input, and what the layers write
  std::vector<std::unique_ptr<Value>> left_out;  // which outputs may still name
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<BatchNormLayer*> batch_norms;
  Value* input = nullptr;
  Outputs outputs;

  LayerObserver* observer = nullptr;
  bool training = true;
  DType activations = DType::kFloat32;
  std::int64_t tile = 0;  // images that go through a stretch together
  MemoryPlan plan;
  std::vector<bool> frozen;  // [layer] whose weight gradients nobody needs
  Storage arena;
  std::int64_t batch = 0;
  std::vector<bool> prepared;                    // [batch] whether the layers know this batch
  std::vector<ConvWeights> weights;              // of all layers, for the present batch
  std::vector<std::vector<GradTarget>> targets;  // [layer][input] what its backward pass writes
  std::optional<TileGradients> gradients;        // of parameters
  std::optional<std::size_t> deferred_weights;   // whose weight gradients are deferred

 private:
  /// What the values of a stretch are seen as, while it runs; those of all images, for the rest.
  class StretchViews;

  Graph describe(const PlanOptions& options) const;
  void declare_gradients();
  void set_views();
  void view(const Stretch& stretch, const StretchMemory& memory, const Images& images);
  void view_all(int value);
  void set_targets(int layer, bool by_tile, const Images& images);
  Tensor place(const Placement& placement, const Value& value, const Images& images) const;
  template <typename Body>
  void for_each_tile(const Stretch& stretch, const StretchMemory& memory, const Body& body);
  void prepare(const Images& images);
  /// `pass`: in which it is needed.
  void run_forward(const Action& action, Direction pass, const StepContext& context);
  /// The backward pass of one layer; its weight gradients may be deferred.
  void run_backward(std::size_t layer, const StepContext& context);
  /// The deferred ones, if a layer has any.
  void compute_deferred_weights(const StepContext& context);
  bool defers_weights(std::size_t layer, const StepContext& context) const;
};

}  // namespace lockstep
