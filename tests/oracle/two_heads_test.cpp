// A user's network: a residual block, a layer of its own, two heads with a loss each.

#include <memory>

#include "lockstep/parallel/data_parallel.h"
#include "oracle/golden_training.h"

namespace lockstep::oracle {
namespace {

/// y = x for positive x, else x / 8: in host memory, as a user of CPU devices would write it.
class LeakyRelu : public Layer {
 public:
  LeakyRelu(std::string name, Value* x, Value* y) : Layer(std::move(name), {x}, y) {}

  LayerTraits traits() const override {
    return {.reads_output = true, .accumulates_from = 1, .prefers_dense = true};
  }
  void forward(Backend&, const StepContext&) override {
    const float* x = inputs()[0]->data.floats();
    float* y = output()->data.floats();
    for (std::int64_t i = 0; i < output()->data.shape.elements(); ++i) {
      y[i] = x[i] > 0 ? x[i] : 0.125F * x[i];
    }
  }
  void backward(Backend&, const StepContext&, std::span<const GradTarget> grads) override {
    const float* y = output()->data.floats();
    const float* grad_y = output()->grad.floats();
    float* grad_x = grads[0].tensor.floats();
    for (std::int64_t i = 0; i < output()->data.shape.elements(); ++i) {
      grad_x[i] = y[i] > 0 ? grad_y[i] : 0.125F * grad_y[i];
    }
  }
};

Outputs two_heads(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  const Conv2dOptions same{.out_channels = 8, .kernel = 3, .padding = 1};
  x = norm(net, net.conv2d(x, "stem.conv", same), "stem.bn", {.relu = true});
  Value* aux = net.conv2d(x, "aux", {.out_channels = 4, .bias = true});
  Value* y = net.conv2d(x, "block.conv", same);
  y = net.append(std::make_unique<LeakyRelu>("leaky", y, net.value("leaky", y->shape)));
  y = norm(net, y, "block.bn", {.relu = true, .residual = x});
  return {{"out", net.conv2d(y, "head", {.out_channels = 4, .bias = true})}, {"aux", aux}};
}

std::vector<float> floats_of(const HostTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

}  // namespace

TEST_CASE("a user's network with two heads: training equals PyTorch on the whole batch") {
  const auto golden = load_golden("two_heads");
  if (!golden) return;
  const Json about = golden->metadata("case");
  for (const int devices : {1, 4}) {
    CAPTURE(devices);
    DataParallel training(
        {.devices = parse_devices("cpu:" + std::to_string(devices)),
         .model = convert_sync_batchnorm(two_heads),
         .norm = BatchNorm2d(),
         .input = {about["batch"], about["size"][0], about["size"][1], 3},
         .losses = {{"out", CrossEntropyLoss{}}, {"aux", CrossEntropyLoss{.weight = 0.4F}}},
         .optimizer = Sgd{.lr = about["lr"],
                          .momentum = about["momentum"],
                          .weight_decay = about["weight_decay"],
                          .norm_weight_decay = about["norm_weight_decay"]}});
    training.load_state_dict(initial_weights(*golden));
    std::vector<float> losses;
    for (std::int64_t step = 0; step < about["steps"].get<std::int64_t>(); ++step) {
      const StepResult result = training.train_step(batch_of(*golden, about, step), step);
      losses.push_back(static_cast<float>(result.losses[0]));
      losses.push_back(static_cast<float>(result.losses[1] / 0.4));
    }
    check_norms("losses", norms(golden->doubles("final.losses.f64"),
                                golden->floats("final.losses.f32"), losses));
    Norms sum;
    for (const auto& [name, tensor] : training.state_dict()) {
      if (tensor.dtype != "F32") continue;
      sum.add(norms(golden->doubles("final." + name + ".f64"),
                    golden->floats("final." + name + ".f32"), floats_of(tensor)));
    }
    check_norms("parameters and statistics", sum);
  }
}

}  // namespace lockstep::oracle
