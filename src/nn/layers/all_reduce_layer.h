#pragma once
// A sum over the samples of all devices, of which the devices' parts meet like BatchNorm's
// statistics.

#include <array>

#include "lockstep/nn/layer.h"
#include "lockstep/sync/barrier.h"

namespace lockstep {

/// y[n] = sum over all samples m of the global batch of x[m]; the gradient is the same sum of y's.
class AllReduceLayer : public Layer {
 public:
  /// `call_index`: of the layer among all of the network.
  AllReduceLayer(std::string name, Value* input, Value* output, int call_index);

  LayerTraits traits() const override;
  void prepare(Backend& backend, bool training) override;
  void set_saved(void* memory) override { saved_ = static_cast<float*>(memory); }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;

 private:
  std::int64_t elements() const;  // of a sample
  std::int64_t slot_floats() const;
  StatSlot sum_samples(Backend& backend, const Tensor& from, float* slot) const;
  float* next_slot();
  void reduce(Backend& backend, const StepContext& context, Direction direction, const Tensor& from,
              const GradTarget& to);

  const int call_index_;
  float* saved_ = nullptr;  // two slots
  bool turn_ = false;
  bool by_image_ = false;
};

}  // namespace lockstep
