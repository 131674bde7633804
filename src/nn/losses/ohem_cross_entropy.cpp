#include <algorithm>
#include <span>

#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"
#include "nn/losses/label_arguments.h"
#include "nn/losses/loss_exchange.h"

namespace lockstep {
namespace {

class OhemNode final : public LossNode {
 public:
  OhemNode(const LossSite& site, const OhemCrossEntropyLoss& loss)
      : LossNode(site, loss.weight, {true, loss.ignore_index}),
        loss_(loss),
        class_weight_(
            upload_per_channel(backend(), loss.class_weight, classes(), "loss.class_weight")),
        exchange_(site, slot_floats(site)),
        state_(backend().allocate(sizeof(OhemState))) {
    const auto rows = static_cast<std::size_t>(site.network.output(output_index()).shape.rows());
    rows_ = backend().allocate(std::max<std::size_t>(1, rows) * sizeof(float));
  }

  void compute(const LossPass& pass) override {
    find_probabilities(pass);
    for (int round = 0; round < kOhemRounds; ++round) narrow(pass, round);
    choose(pass);
    CrossEntropy arguments = label_arguments(pass, ignore_index());
    arguments.class_weight = floats_of(class_weight_);
    arguments.row_weights = rows();
    arguments.rows_per_weight = 1;
    arguments.normalizer = {0.0, &state()->normalizer};
    backend().losses().cross_entropy(arguments);
  }
  // Of all pixels: which of them are hard is a question of training.
  void evaluate(const LossPass& pass) override {
    backend().losses().cross_entropy(label_arguments(pass, ignore_index()));
  }

 private:
  std::int64_t slot_floats(const LossSite& site) const {
    const std::int64_t samples = std::max<std::int64_t>(1, site.network.planned_batch());
    return 2 * std::max<std::int64_t>(kOhemCounts, samples * 2 * classes());
  }

  double mean_over(const LossCounts& counts) const override {
    return weighted_labels(counts, loss_.class_weight);
  }

  float* rows() const { return static_cast<float*>(rows_.data()); }
  OhemState* state() const { return static_cast<OhemState*>(state_.data()); }

  void find_probabilities(const LossPass& pass) {
    LabelProbabilities arguments;
    arguments.logits = pass.output;
    arguments.labels = pass.target;
    arguments.ignore_index = ignore_index();
    arguments.probabilities = rows();
    backend().losses().label_probabilities(arguments);
  }

  /// The next bits of the threshold.
  void narrow(const LossPass& pass, int round) {
    const Shape& shape = pass.output.shape;
    float* const slot = exchange_.next_slot();
    backend().losses().ohem_count({round, rows(), shape.rows(), shape.batch(), state(), slot});
    const StatSlot local{shape.batch(), slot};
    backend().losses().ohem_narrow({round, exchange_.show(pass.communicator, {local, kOhemCounts}),
                                    loss_.min_kept, loss_.thresh, state()});
  }

  /// The rows' weights, and what the loss is divided by.
  void choose(const LossPass& pass) {
    const std::int64_t samples = pass.output.shape.batch(), elements = 2 * classes();
    float* const slot = exchange_.next_slot();
    if (samples == 0) backend().fill(Tensor(slot, Shape{1, 2 * elements}), 0);
    OhemChoice choice;
    choice.labels = pass.target;
    choice.classes = classes();
    choice.sample_weights = pass.sample_weights;
    choice.state = state();
    choice.rows = rows();
    choice.by_image = backend().sums_by_image();
    choice.slots = slot;
    if (samples > 0) backend().losses().ohem_choose(choice);
    const std::int64_t parts = choice.by_image ? std::max<std::int64_t>(1, samples) : 1;
    OhemShare share;
    share.weights = exchange_.show(pass.communicator, {{samples, slot, parts}, elements});
    share.classes = classes();
    share.class_weight = floats_of(class_weight_);
    share.normalizer = pass.normalizer;
    share.state = state();
    backend().losses().ohem_share(share);
  }

  const OhemCrossEntropyLoss loss_;
  const Storage class_weight_;  // [classes]; empty: all 1
  LossExchange exchange_;
  const Storage state_;  // OhemState
  Storage rows_;         // [row] the probability of its label; then its weight
};

}  // namespace

std::unique_ptr<LossNode> OhemCrossEntropyLoss::make_node(const LossSite& site) const {
  return std::make_unique<OhemNode>(site, *this);
}

}  // namespace lockstep
