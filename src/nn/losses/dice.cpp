#include <algorithm>

#include "lockstep/nn/loss.h"
#include "nn/losses/loss_exchange.h"

namespace lockstep {
namespace {

class DiceNode final : public LossNode {
 public:
  DiceNode(const LossSite& site, const DiceLoss& loss)
      : LossNode(site, loss.weight, {true, loss.ignore_index}),
        loss_(loss),
        elements_(3 * classes() + 1),
        exchange_(site, std::max<std::int64_t>(1, site.network.planned_batch()) * 2 * elements_) {
    reserve(site.network.planned_batch());
  }

  double terms(const LossCounts& counts) const override { return counts.samples; }

  void compute(const LossPass& pass) override {
    const std::int64_t samples = pass.output.shape.batch();
    if (loss_.per_image) return compute_by_image(pass);
    float* const slot = exchange_.next_slot();
    backend().fill({slot, Shape{1, 2 * elements_}}, 0);
    const bool by_image = backend().sums_by_image();
    add_sums(pass, pass.sample_weights, by_image, slot);
    const StatSlot local{samples, slot, by_image ? std::max<std::int64_t>(1, samples) : 1};
    const Tensor whole(sums_.data(), Shape{1, elements_});
    backend().sums().broadcast_sum(exchange_.show(pass.communicator, {local, elements_}), whole,
                                   false);
    add_losses(pass, whole);
  }
  // Every image by itself, so that it does not matter in which batch it comes.
  void evaluate(const LossPass& pass) override {
    reserve(pass.output.shape.batch());
    compute_by_image(pass);
  }

 private:
  std::size_t slot_floats(std::int64_t samples) const {
    return static_cast<std::size_t>(samples * 2 * elements_);
  }

  /// For so many images by themselves.
  void reserve(std::int64_t samples) {
    const std::size_t slots = slot_floats(samples) * sizeof(float);
    if (image_slots_.bytes() >= slots && sums_.bytes() > 0) return;
    image_slots_ = backend().allocate(std::max<std::size_t>(slots, sizeof(float)));
    sums_ = backend().allocate(slot_floats(std::max<std::int64_t>(1, samples)) * sizeof(float));
  }

  void compute_by_image(const LossPass& pass) {
    auto* const slots = static_cast<float*>(image_slots_.data());
    const Tensor sums(sums_.data(), Shape{pass.output.shape.batch(), elements_});
    add_sums(pass, nullptr, true, slots);
    for (std::int64_t n = 0; n < sums.shape.batch(); ++n) {
      const StatSlot own{1, slots + n * 2 * elements_};
      backend().sums().broadcast_sum({&own, 1}, sums.sample_range(n, 1), false);
    }
    add_losses(pass, sums);
  }

  void add_sums(const LossPass& pass, const float* sample_weights, bool by_image, float* slots) {
    DiceSums sums;
    sums.logits = pass.output;
    sums.labels = pass.target;
    sums.ignore_index = ignore_index();
    sums.sample_weights = sample_weights;
    sums.by_image = by_image;
    sums.slots = slots;
    backend().losses().dice_sums(sums);
  }

  void add_losses(const LossPass& pass, const Tensor& sums) {
    DiceLosses arguments;
    arguments.logits = pass.output;
    arguments.labels = pass.target;
    arguments.ignore_index = ignore_index();
    arguments.sums = sums;
    arguments.smooth = loss_.smooth;
    arguments.normalizer = pass.normalizer;
    arguments.sample_weights = pass.sample_weights;
    arguments.grad_logits = pass.grad_output;
    arguments.loss = pass.loss;
    arguments.image_losses = pass.image_losses;
    arguments.grad_scale = pass.grad_scale;
    backend().losses().dice_losses(arguments);
  }

  const DiceLoss loss_;
  const std::int64_t elements_;  // of a sample's sums
  LossExchange exchange_;
  Storage image_slots_;  // [sample, 2, elements]
  Storage sums_;         // [sample, elements], or of the whole batch
};

}  // namespace

std::unique_ptr<LossNode> DiceLoss::make_node(const LossSite& site) const {
  return std::make_unique<DiceNode>(site, *this);
}

}  // namespace lockstep
