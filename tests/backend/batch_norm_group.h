#pragma once
// A BatchNorm call of several replicas as the layer makes it, one replica after another on one
// backend: partial moments, all slots to everyone, normalise; then the same with the backward sums.

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backend/operand.h"
#include "checks/reference_batch_norm.h"

namespace lockstep::test {

struct BatchNormProblem {
  Shape shape;                        // of the whole batch
  std::vector<std::int64_t> batches;  // samples of each replica; may hold zeros
  Margins margins;                    // of every tensor of activations
  DType dtype = DType::kFloat32;      // of activations
  bool affine = true;
  bool residual = false;
  bool relu = false;
  EpsMode eps_mode = EpsMode::kAdd;
  float eps = 1e-5F;
  double momentum = 0.1;

  Values x, residual_values, grad_y;  // [rows, C]
  Values weight, bias;                // [C]
  Values running_mean, running_var;   // [C] before the call
  ReferenceBatchNorm reference;       // of the whole batch
  ReferenceBatchNorm::Output expected;
  ReferenceBatchNorm::Gradients expected_gradients;

  BatchNormProblem(const Shape& whole, std::vector<std::int64_t> samples);

  /// Draws all values: every channel with its own mean (of about `offset`) and spread, no gradient
  /// where the ReLU has its kink.
  void draw(std::uint32_t seed, float offset = 1.0F);
  /// Recomputes what is expected after values were changed.
  void refresh();
  /// The same problem with activations of a type.
  BatchNormProblem stored_as(DType type) const;
};

/// What all replicas computed: activations concatenated, the rest per replica.
struct BatchNormResult {
  Values y, grad_x, grad_residual;
  Values grad_weight, grad_bias;  // added up over the replicas, as the gradient exchange does
  std::vector<Values> moments, sums, saved, running_mean, running_var;
};

/// One replica's memory.
struct BatchNormReplica {
  /// Samples [begin, begin + batch) of the problem.
  BatchNormReplica(Backend& backend, const BatchNormProblem& p, std::int64_t begin,
                   std::int64_t batch);

  Shape shape;
  Operand x, residual, grad_y, y, grad_x, grad_residual;
  Operand weight, bias, running_mean, running_var, grad_weight, grad_bias;  // [C]
  Operand moments, sums;                                                    // [2, C]
  Operand saved;                                                            // [3, C]
};

class BatchNormGroup {
 public:
  BatchNormGroup(Backend& backend, const BatchNormProblem& problem);

  std::deque<BatchNormReplica>& replicas() { return replicas_; }
  BatchNormReplica& replica(std::size_t rank) { return replicas_[rank]; }

  BatchNormForward forward_arguments(BatchNormReplica& r, std::span<const StatSlot> slots) const;
  BatchNormBackwardReduce reduce_arguments(BatchNormReplica& r) const;
  BatchNormBackwardApply apply_arguments(BatchNormReplica& r,
                                         std::span<const StatSlot> slots) const;

  /// Every replica's partial moments, or backward sums.
  std::vector<StatSlot> moment_slots();
  std::vector<StatSlot> sum_slots();
  void forward();
  void backward();

  BatchNormResult result() const;
  bool margins_untouched() const;

 private:
  AffineParameters affine(const BatchNormReplica& r) const;

  Backend& backend_;
  const BatchNormProblem& problem_;
  std::deque<BatchNormReplica> replicas_;  // not a vector: they never move
};

/// Forward and backward pass of the whole group.
BatchNormResult run_batch_norm(Backend& backend, const BatchNormProblem& problem);

}  // namespace lockstep::test
