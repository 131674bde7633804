// Losses and their gradients against PyTorch: through their nodes, as a training calls them.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/loss.h"
#include "lockstep/nn/model.h"
#include "oracle/golden.h"

namespace lockstep::oracle {
namespace {

std::vector<float> if_weighted(const Json& options, const std::vector<float>& weights) {
  return options.value("weighted", false) ? weights : std::vector<float>{};
}

/// What the name of a case begins with says which loss it is.
Loss loss_of(const std::string& name, const Json& options, const std::vector<float>& weights) {
  const std::vector<float> given = if_weighted(options, weights);
  const auto begins = [&](const char* with) { return name.starts_with(with); };
  if (begins("focal")) return FocalLoss{.gamma = options.at("gamma"), .alpha = given};
  if (begins("dice")) {
    return DiceLoss{.smooth = options.at("smooth"), .per_image = options.value("per_image", false)};
  }
  if (begins("ohem")) {
    return OhemCrossEntropyLoss{
        .thresh = options.at("thresh"), .min_kept = options.at("min_kept"), .class_weight = given};
  }
  if (begins("l1")) return L1Loss{};
  if (begins("huber")) return HuberLoss{.delta = options.at("delta")};
  if (begins("bce")) return BCEWithLogitsLoss{.pos_weight = given};
  if (begins("squared_error")) return MeanSquaredErrorLoss{};
  return CrossEntropyLoss{.class_weight = given,
                          .label_smoothing = options.value("label_smoothing", 0.0F)};
}

Outputs head(NetworkBuilder& net, Value* x, const NormLayer&) {
  return {{"out", net.conv2d(x, "head", {.out_channels = 5, .kernel = 1})}};
}

/// The counts of a batch; empty weights: all samples weigh 1.
struct Counts {
  std::vector<double> labels;
  double samples = 0;

  Counts(const std::vector<std::uint16_t>& of, const Shape& shape,
         const std::vector<float>& weights)
      : labels(static_cast<std::size_t>(shape.channels())) {
    const auto rows = static_cast<std::size_t>(shape.rows_per_sample());
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (of[i] != 255) labels[of[i]] += weights.empty() ? 1.0 : weights[i / rows];
    }
    for (std::int64_t n = 0; n < shape.batch(); ++n) samples += weights.empty() ? 1.0 : weights[n];
  }
};

void check_loss(const Golden& golden, const std::string& name) {
  CAPTURE(name);
  const Json options = golden.metadata(name);
  const Shape shape = golden.shape(name + ".output");
  const auto backend = make_backend(Device{}, 2);
  ParameterStore store;
  const auto network = build_network(head, {}, {shape.batch(), shape.height(), shape.width(), 3},
                                     {}, *backend, store);
  const Loss loss = loss_of(name, options, golden.floats(name + ".channels"));
  const std::unique_ptr<LossNode> node = loss.make_node({"out", *network});

  std::vector<float> output = golden.floats(name + ".output"),
                     values = golden.floats(name + ".values"), gradient(output.size());
  const std::vector<std::uint8_t> bytes = golden.bytes(name + ".labels");
  std::vector<std::uint16_t> labels(bytes.begin(), bytes.end());
  std::vector<float> samples;
  if (options.value("samples", false)) samples = golden.floats(name + ".samples");
  const Counts counts(labels, shape, samples);
  const double elements = counts.samples * static_cast<double>(shape.rows_per_sample()) * 5;
  double total = 0;
  // The CPU's device memory is the host's.
  node->compute({.output = {output.data(), shape},
                 .target = node->takes_labels()
                               ? Tensor(labels.data(), shape.with_channels(1), DType::kUInt16)
                               : Tensor(values.data(), shape),
                 .grad_output = {gradient.data(), shape},
                 .sample_weights = samples.empty() ? nullptr : samples.data(),
                 .normalizer = node->normalizer({counts.labels, counts.samples, elements}),
                 .loss = &total});
  check_result(golden, name + ".loss", {static_cast<float>(total)});
  check_result(golden, name + ".grad_output", gradient);
}

}  // namespace

TEST_CASE("losses of every kind against PyTorch") {
  const auto golden = load_golden("more_losses");
  if (!golden) return;
  for (const std::string& name : golden->cases()) check_loss(*golden, name);
}

}  // namespace lockstep::oracle
