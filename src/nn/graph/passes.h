#pragma once
// The passes of a network: its stretches one after another, the images of each tile by tile.

#include <cstddef>
#include <optional>
#include <vector>

#include "nn/graph/planned_memory.h"
#include "nn/graph/round_trips.h"
#include "nn/graph/tile_gradients.h"

namespace lockstep {

/// Owned by its network.
class Passes {
 public:
  /// `training`: whether backward passes may follow.
  Passes(DeclaredNetwork& network, PlannedMemory& memory, bool training);

  bool training() const { return training_; }
  /// Null: nobody.
  void observe(LayerObserver* observer) { observer_ = observer; }
  /// As Network's. The first time that a batch comes layers prepare for it.
  void set_batch(std::int64_t batch);
  void forward(const StepContext& context);
  void backward(const StepContext& context, const Network::AfterLayer& after_layer);

 private:
  std::int64_t planned_batch() const { return network_.input->shape.batch(); }
  void declare_gradients();
  void prepare(const Images& images);
  /// Before and after an action for some images: the values that it needs are here while it runs.
  void begin_action(int step, const Images& images);
  void end_action(int step, const Images& images);
  /// `pass`: in which the action is needed; a backward one computes layers forward again.
  void run(const Action& action, Direction pass, const StepContext& context);
  /// The gradients of one layer; those of its weights may be deferred.
  void run_backward(std::size_t layer, const StepContext& context);
  /// The deferred ones, if a layer has any.
  void compute_deferred_weights(const StepContext& context);
  void finish_gradients();
  bool defers_weights(std::size_t layer, const StepContext& context) const;

  DeclaredNetwork& network_;
  Backend& backend_;
  PlannedMemory& memory_;
  const MemoryPlan& plan_;
  const bool training_;
  TileGradients gradients_;  // of parameters
  RoundTrips round_trips_;
  LayerObserver* observer_ = nullptr;
  std::vector<bool> prepared_;                   // [batch] whether the layers know this batch
  std::vector<ConvWeights> weights_;             // of all layers, for the present batch
  std::optional<std::size_t> deferred_weights_;  // whose weight gradients are deferred
};

}  // namespace lockstep
