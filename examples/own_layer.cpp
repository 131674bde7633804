// A layer of one's own: PReLU, whose slopes for negative values are learned (He et al. 2015, arXiv
// 1502.01852, eq. 1). A network with it learns what another one computes, so its slopes must become
// the other's.
#include <lockstep/lockstep.h>

#include <bit>
#include <cstdio>
#include <random>

using namespace lockstep;

constexpr int kImages = 12, kSize = 8, kChannels = 3;
constexpr float kTeacherSlopes[kChannels] = {0.1F, 0.25F, 0.5F};

/// y = x for positive x, else slope * x, with a slope for each channel.
class PRelu : public Layer {
 public:
  PRelu(std::string name, Value* x, Value* y, Parameter& slope)
      : Layer(std::move(name), {x}, y), slope_(slope) {}

  std::vector<const Parameter*> parameters() const override { return {&slope_}; }
  LayerTraits traits() const override {
    return {.reads_input = true,     // in `backward`, so it is not overwritten before
            .accumulates_from = 1,   // the network adds to the gradient of input 0 where it must
            .prefers_dense = true};  // rows lie one behind the other
  }

  void forward(Backend&, const StepContext&) override {
    const float* x = inputs()[0]->data.floats();
    float* y = output()->data.floats();
    for (std::int64_t i = 0; i < output()->data.shape.elements(); ++i) {
      y[i] = x[i] > 0 ? x[i] : slope_.value[i % channels()] * x[i];
    }
  }

  void backward(Backend&, const StepContext& context, std::span<const GradTarget> grads) override {
    const GradientPart all{.first = 0, .count = output()->data.shape.batch()};
    if (context.gradient_parts.empty()) add_slope_gradient(all);
    for (const GradientPart& part : context.gradient_parts) add_slope_gradient(part);
    if (!grads[0].tensor) return;  // nobody needs the gradient of the input
    const float* x = inputs()[0]->data.floats();
    const float* grad_y = output()->grad.floats();
    float* grad_x = grads[0].tensor.floats();
    for (std::int64_t i = 0; i < output()->data.shape.elements(); ++i) {
      grad_x[i] = x[i] > 0 ? grad_y[i] : slope_.value[i % channels()] * grad_y[i];
    }
  }

 private:
  std::int64_t channels() const { return output()->shape.channels(); }

  void add_slope_gradient(const GradientPart& part) const {
    if (part.count == 0) return;
    float* to = part.grads == nullptr ? slope_.grad : part.grads + slope_.offset;
    for (std::int64_t c = 0; c < channels(); ++c)
      to[c] += images_gradient(part.first, part.count, c);
  }
  /// In a binary tree over the images: so their sum does not depend on how they are spread over
  /// devices.
  float images_gradient(std::int64_t first, std::int64_t count, std::int64_t c) const {
    if (count == 1) return image_gradient(first, c);
    const auto half =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count - 1)));
    return images_gradient(first, half, c) + images_gradient(first + half, count - half, c);
  }
  float image_gradient(std::int64_t image, std::int64_t c) const {
    const std::int64_t elements = output()->data.shape.rows_per_sample() * channels();
    const float* x = inputs()[0]->data.floats() + image * elements;
    const float* grad_y = output()->grad.floats() + image * elements;
    double sum = 0;
    for (std::int64_t i = c; i < elements; i += channels()) sum += x[i] > 0 ? 0 : grad_y[i] * x[i];
    return static_cast<float>(sum);
  }

  Parameter& slope_;
};

Value* prelu(NetworkBuilder& net, Value* x, const std::string& name) {
  Parameter& slope =
      net.parameter(name + ".slope", {x->shape.channels()}, ParameterKind::kBias);  // starts at 0
  return net.append(std::make_unique<PRelu>(name, x, net.value(name, x->shape), slope));
}

Outputs student(NetworkBuilder& net, Value* x, const NormLayer&) {
  return {{"out", prelu(net, net.conv2d(x, "conv", {.out_channels = kChannels}), "act")}};
}

/// Noise, and what the teacher makes of it: channel c minus half of the next one, and then PReLU.
Batch lesson(int step) {
  std::mt19937 random(static_cast<unsigned>(step));
  std::normal_distribution<float> noise;
  Batch batch;
  for (int n = 0; n < kImages; ++n) batch.samples.push_back(kImages * step + n);
  std::vector<float>& targets = batch.targets["out"];
  for (int pixel = 0; pixel < kImages * kSize * kSize; ++pixel) {
    const float x[kChannels] = {noise(random), noise(random), noise(random)};
    batch.images.insert(batch.images.end(), std::begin(x), std::end(x));
    for (int c = 0; c < kChannels; ++c) {
      const float z = x[c] - x[(c + 1) % kChannels] / 2;
      targets.push_back(z > 0 ? z : kTeacherSlopes[c] * z);
    }
  }
  return batch;
}

TensorMap train(const char* devices) {
  DataParallel net({.devices = parse_devices(devices),
                    .model = student,
                    .input = {kImages, kSize, kSize, kChannels},
                    .losses = {{"out", MeanSquaredErrorLoss{}}},
                    .optimizer = Sgd{.lr = 0.1F, .weight_decay = 0}});
  for (int step = 0; step < 300; ++step) net.train_step(lesson(step), step);
  return net.state_dict();
}

int main() {
  const TensorMap three = train("cpu:3"), one = train("cpu:1");
  std::printf("learned slopes:");
  const auto* slopes = reinterpret_cast<const float*>(three.at("act.slope").data.data());
  for (int c = 0; c < kChannels; ++c) std::printf(" %.3f", slopes[c]);
  const bool equal = three == one;
  std::printf("\nbitwise identical on one device and on three: %s\n", equal ? "yes" : "no");
  return equal ? 0 : 1;
}
