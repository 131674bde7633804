#pragma once
// What the passes of a network compute, and when. Time counts steps, the actions of the schedule:
// of L layers that run once in each direction, forward of layer i is step i, the loss step L,
// backward of layer i is step 2L - i, and step 2L + 1 is after the pass.

#include <vector>

#include "nn/graph/schedule.h"

namespace lockstep {

/// What passes run, and in which order.
struct PassPlan {
  Schedule schedule;
  std::vector<bool> runs_backward;  // [layer]
  std::vector<bool> frozen;         // [layer] whose weight gradients nobody needs
  std::vector<int> weights_until;   // [layer] in whose backward pass its weight gradients are due
  int loss_step = 0;                // between the forward pass and the backward pass
};

class Timeline {
 public:
  /// Steps from the first to the last, both included.
  struct Span {
    int first = 0, last = 0;
  };

  /// The graph outlives the object.
  explicit Timeline(const Graph& graph);

  const PassPlan& passes() const { return passes_; }
  /// Whether the value's gradient is given, or computed.
  bool has_grad(int value) const { return has_grad_[value]; }
  /// Whether a layer's backward pass computes the gradient of this input.
  bool needs_grad(int layer, int input) const {
    return passes_.runs_backward[layer] && wanted_[input];
  }

  int forward_step(int layer) const { return forward_step_[layer]; }
  int backward_step(int layer) const { return backward_step_[layer]; }
  /// The step by which its weight gradients are there.
  int weights_step(int layer) const { return backward_step(passes_.weights_until[layer]); }
  int loss_step() const { return passes_.loss_step; }
  int end() const { return end_; }
  /// The steps of an action for what is kept of all images: those of its stretch, where that comes
  /// back to each of them.
  const Span& span(int step) const { return spans_[step]; }
  /// The stretch of a layer's backward pass: its index in Schedule::backward.
  int backward_stretch(int layer) const { return stretch_of_[layer]; }

 private:
  void find_gradients();
  void count_steps();
  void count_steps(const Stretch& stretch);
  void defer_weight_gradients();

  const Graph& graph_;
  const int layers_;
  PassPlan passes_;
  std::vector<bool> wanted_;                       // [value] something to learn lies before it
  std::vector<bool> has_grad_;                     // [value]
  std::vector<Span> spans_;                        // [step]
  std::vector<int> forward_step_, backward_step_;  // [layer]
  std::vector<int> stretch_of_;                    // [layer] of the backward pass
  int end_ = 0;
};

}  // namespace lockstep
