// A network of your own with everything that one asks of PyTorch: residual blocks, one of them
// dilated, an activation of its own, two heads with a loss each, SGD and AdamW that spare norms and
// biases weight decay, batches of uneven sizes. It trains on four devices with SyncBN, and again on
// one. The weights go to a file, the network to ONNX.
#include <lockstep/lockstep.h>

#include <array>
#include <cstdio>

using namespace lockstep;

// --- The activation: y = x for positive x, else x times a slope that each channel learns ---

struct Slope {
  static constexpr float kInitial = 0.25F;
  float operator()(float x, float slope) const { return x > 0 ? x : slope * x; }
  float gradient(float x, float slope, float dy) const { return x > 0 ? dy : slope * dy; }
  float parameter_gradient(float x, float, float dy) const { return x > 0 ? 0 : x * dy; }
  std::string export_onnx(OnnxGraph& graph, const std::string& x, const std::string& slope) const {
    return graph.add("PRelu", {x, slope});
  }
};

// --- The network ---

Value* block(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& name,
             std::int64_t dilation) {
  const Conv2dOptions conv{
      .out_channels = 24, .kernel = 3, .padding = dilation, .dilation = dilation};
  Value* y = norm(net, net.conv2d(x, name + ".conv1", conv), name + ".bn1");
  y = elementwise<Slope>(net, y, name + ".act");
  y = net.conv2d(y, name + ".conv2", conv);
  return norm(net, y, name + ".bn2", {.relu = true, .residual = x});
}

Outputs network(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = net.conv2d(x, "stem", {.out_channels = 24, .kernel = 5, .stride = 2, .padding = 2});
  x = norm(net, x, "stem_bn", {.relu = true});
  x = block(net, x, norm, "block1", 1);
  x = block(net, x, norm, "block2", 2);
  Value* classes = net.conv2d(x, "classes", {.out_channels = 4, .bias = true});
  Value* pooled = net.reshape(net.adaptive_avg_pool2d(x, 1, 1), {x->shape.batch(), 24});
  return {{"classes", net.upsample_bilinear(classes, 32, 32, false)},
          {"brightness", net.linear(pooled, "brightness", 1)}};
}

// --- The data ---
// Each quarter of an image has a colour, in noise. A pixel's class is the colour, or 3 in the dark;
// every seventh pixel is not labelled. The brightness is how many quarters are lit.

/// Uniform in [-1, 1): a hash of `key`.
float noise(std::uint32_t key) {
  key = (key ^ (key >> 16)) * 0x45d9f3bU;
  key = (key ^ (key >> 16)) * 0x45d9f3bU;
  return static_cast<float>((key ^ (key >> 16)) >> 8) / float{1 << 23} - 1;
}

Batch patches(std::uint32_t first, std::uint32_t images) {
  Batch batch;
  for (std::uint32_t n = first; n < first + images; ++n) {
    batch.samples.push_back(n);
    float lit = 0;
    for (std::uint32_t pixel = 0; pixel < 32 * 32; ++pixel) {
      const std::uint32_t quarter = pixel / 512 * 2 + pixel / 16 % 2;
      const auto colour = static_cast<Label>((noise(n * 4 + quarter) + 1) * 2);  // 0 to 3
      for (std::uint32_t c = 0; c < 3; ++c) {
        batch.images.push_back(2 * noise((n * 1024 + pixel) * 3 + c) + (c == colour ? 1.F : 0.F));
      }
      batch.labels.push_back(pixel % 7 == 0 ? 255 : colour);
      if (pixel % 16 == 0 && pixel / 16 % 32 < 2) lit += colour < 3 ? 1 : 0;
    }
    batch.targets["brightness"].push_back(lit);
  }
  return batch;
}

// --- The training ---

DataParallelOptions training(const char* devices, const Optimizer& optimizer) {
  return {.devices = parse_devices(devices),
          .model = network,
          .norm = SyncBatchNorm(),
          .input = {10, 32, 32, 3},
          .losses = {{"classes", CrossEntropyLoss{.class_weight = {1, 1, 1, 2}}},
                     {"brightness", MeanSquaredErrorLoss{.weight = 0.1F}}},
          .optimizer = optimizer};
}

StepResult train(DataParallel& net) {
  StepResult last;
  for (std::uint32_t step = 0; step < 60; ++step) {
    last = net.train_step(patches(10 * step, std::array{10U, 7U, 3U}[step % 3]), step);
  }
  return last;
}

int main() {
  const Optimizer optimizers[] = {Sgd{.lr = 0.05F, .bias_weight_decay = 0.F},
                                  AdamW{.lr = 0.01F, .bias_weight_decay = 0.F}};
  for (const Optimizer& optimizer : optimizers) {
    DataParallel four(training("cpu:4", optimizer)), one(training("cpu:1", optimizer));
    const StepResult last = train(four);
    train(one);
    const bool equal = four.state_dict() == one.state_dict();
    std::printf("%s: classes %.2f, brightness %.2f; bitwise identical on one device: %s\n",
                optimizer_name(optimizer).c_str(), last.losses[0], last.losses[1],
                equal ? "yes" : "no");
    save_safetensors("residual_network.safetensors", four.state_dict());
  }
  const TensorMap weights = load_weights("residual_network.safetensors");
  save_onnx("residual_network.onnx", network, BatchNorm2d(), weights,
            {.height = 32, .width = 32, .outputs = {"classes", "brightness"}});
  Predictor predictor(network, weights, {.output = "brightness"});
  const Batch batch = patches(5000, 4);
  const auto predicted = predictor.predict(batch.images, {4, 32, 32, 3}).logits;
  for (int n = 0; n < 4; ++n) {
    std::printf("lit quarters: %.0f, predicted %.0f\n", batch.targets.at("brightness")[n],
                predicted[n]);
  }
}
