#pragma once
// What computes a loss for one replica: the end of a network's forward pass and the start of its
// backward pass. A loss of one's own that is more than a formula of elements (ElementwiseLoss)
// derives from LossNode, and its value makes it (nn/loss.h).
//
// The one rule: the loss is of the global batch. A node adds this replica's share of it, divided by
// the normalizer of the whole. What takes more knowledge of other replicas it exchanges with them;
// then every node does so in every step, with or without samples.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/backend/backend.h"
#include "lockstep/nn/network.h"
#include "lockstep/sync/group.h"

namespace lockstep {

/// What an output is compared with.
struct LossTarget {
  bool labels = false;    // Batch::labels; else values, Batch::targets of the output
  int ignore_index = -1;  // a label that does not count
};

/// The output that a node is for.
struct LossSite {
  std::string output;      // its name
  const Network& network;  // set to the largest batch that will come; used for set-up only
  int index = 0;           // of the loss among those of the run
};

/// A whole global batch, from which a loss's normalizer is made.
struct LossCounts {
  std::span<const double> labels;  // [class] valid ones, times their samples' weights
  double samples = 0;              // times their weights
  double elements = 0;             // of the output, of all samples, times their weights
};

/// A replica's share of a training step or of an evaluation. Pointers are to device memory.
struct LossPass {
  Tensor output;  // [N, ..., C]; N may be 0
  Tensor target;  // uint16 [N, ..., 1], or fp32 of the output's shape
  /// To be written, multiplied by `grad_scale`; null: only the loss.
  Tensor grad_output = {};
  const float* sample_weights = nullptr;  // [N]; null: all 1
  DeviceScalar<double> normalizer = 1.0;  // of the whole global batch
  DeviceScalar<float> grad_scale = 1.0F;
  double* loss = nullptr;  // += this replica's share
  /// [N], += what each sample adds to the loss. Null: not wanted.
  double* image_losses = nullptr;
  std::reference_wrapper<Communicator> communicator = lone_rank();
};

/// Owned by its replica and used by that replica's thread; of use for every network of one model.
class LossNode {
 public:
  LossNode(const LossSite& site, float weight, const LossTarget& target);
  LossNode(const LossNode&) = delete;
  LossNode& operator=(const LossNode&) = delete;
  virtual ~LossNode() = default;

  const std::string& output() const { return output_; }
  std::size_t output_index() const { return index_; }
  /// Channels of the output.
  std::int64_t classes() const { return classes_; }
  bool takes_labels() const { return target_.labels; }
  int ignore_index() const { return target_.ignore_index; }

  /// Returns a view of `memory` as what the output is compared with, for the batch that `network`
  /// is set to: labels, uint16 [N, ..., 1], or values, fp32 of the output's shape.
  Tensor target(const Network& network, void* memory) const;

  /// Returns what the loss of a global batch is divided by; it includes the loss's weight. 0: the
  /// loss and its gradient are 0.
  double normalizer(const LossCounts& counts) const;

  /// Returns how many terms the sum of an evaluation has: valid labels, or elements.
  virtual double terms(const LossCounts& counts) const;

  /// Whether `compute` waits for the device and lets the host do some of it. Then no step can be
  /// replayed from a recording (DataParallelOptions::cuda_graph).
  virtual bool needs_host() const { return false; }
  /// Adds this replica's share of the loss and writes the output's gradient.
  virtual void compute(const LossPass& pass) = 0;
  /// Adds the sum over all terms, without weights of classes, to the loss. No replica waits for
  /// another. By default as `compute`.
  virtual void evaluate(const LossPass& pass) { compute(pass); }

 protected:
  /// Returns what a mean over the global batch is divided by: by default the terms.
  virtual double mean_over(const LossCounts& counts) const { return terms(counts); }

  Backend& backend() const { return backend_; }

 private:
  const std::string output_;
  const float weight_;
  const LossTarget target_;
  Backend& backend_;
  const std::size_t index_;  // of the output
  const std::int64_t classes_;
};

/// Makes a node for a loss of elements. Where the device has no kernel for the formula, as a GPU
/// has only for the library's own, the host computes it: see ElementwiseLoss.
std::unique_ptr<LossNode> make_element_node(const LossSite& site, float weight,
                                            std::unique_ptr<const ElementFormula> formula);

}  // namespace lockstep
