// A first training: find a bright disc in noise, on four devices with SyncBN, and again on one.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace lockstep;

constexpr int kImages = 8, kSize = 32;  // of a global batch; height and width

// Which BatchNorm is the caller's choice: `norm`.
Outputs network(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  const Conv2dOptions same{.out_channels = 16, .kernel = 3, .padding = 1};
  x = norm(net, net.conv2d(x, "conv0", same), "bn0", {.relu = true});
  x = norm(net, net.conv2d(x, "conv1", same), "bn1", {.relu = true});
  return {{"out", net.conv2d(x, "head", {.out_channels = 2, .bias = true})}};
}

// Images [N, H, W, 1] and a class for each pixel: 1 in the disc, 0 elsewhere.
Batch discs(int step) {
  std::mt19937 random(static_cast<unsigned>(step));
  std::normal_distribution<float> noise;
  std::uniform_real_distribution<double> place(0, kSize);
  Batch batch;
  for (int n = 0; n < kImages; ++n) {
    batch.samples.push_back(kImages * step + n);
    const double centre_y = place(random), centre_x = place(random);
    const float light = noise(random) / 2;  // every image has its own
    for (int y = 0; y < kSize; ++y) {
      for (int x = 0; x < kSize; ++x) {
        const bool inside = std::hypot(y - centre_y, x - centre_x) < 8;
        batch.images.push_back(light + noise(random) + (inside ? 3.F : 0.F));
        batch.labels.push_back(inside ? 1 : 0);
      }
    }
  }
  return batch;
}

TensorMap train(const char* devices) {
  DataParallel net({.devices = parse_devices(devices),
                    .model = network,
                    .norm = SyncBatchNorm(),
                    .input = {kImages, kSize, kSize, 1},
                    .losses = {{"out", CrossEntropyLoss{}}},
                    .optimizer = Sgd{.lr = 0.1F}});
  const double first = net.train_step(discs(0), 0).loss;
  for (int step = 1; step < 99; ++step) net.train_step(discs(step), step);
  std::printf("%s: loss %.2f, then %.2f\n", devices, first, net.train_step(discs(99), 99).loss);
  return net.state_dict();  // under PyTorch's names: save_safetensors() writes it
}

int main() {
  const TensorMap four = train("cpu:4"), one = train("cpu:1");
  const bool equal = four == one;
  std::printf("the weights are bitwise identical: %s\n", equal ? "yes" : "no");
  return equal ? 0 : 1;
}
