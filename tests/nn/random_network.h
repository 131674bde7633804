#pragma once
// Networks that nobody thought of.

#include <random>
#include <string>
#include <vector>

#include "lockstep/nn/network.h"

namespace lockstep::test {

/// A random network of all layers that keep memory interesting, on values of one size.
inline Value* random_network(NetworkBuilder& net, Value* input, std::uint32_t seed) {
  std::mt19937 random(seed);
  const Conv2dOptions conv{.out_channels = 3, .kernel = 3, .padding = 1};
  std::vector<Value*> values{net.conv2d(input, "stem", conv)};
  const auto any = [&] { return values[random() % values.size()]; };
  const auto with_channels = [&](std::int64_t channels) {
    Value* found = values[0];
    for (Value* value : values) {
      if (value->shape.channels() == channels && random() % 3 != 0) found = value;
    }
    return found;
  };
  for (int i = 0; i < 14; ++i) {
    const std::string name = "l" + std::to_string(i);
    Value* x = any();
    switch (random() % 9) {
      case 0:
        values.push_back(net.conv2d(x, name, conv));
        break;
      case 1:
        values.push_back(net.relu(x));
        break;
      case 2:
        values.push_back(net.batch_norm_relu(x, name));
        break;
      case 3:
        values.push_back(net.batch_norm_add_relu(with_channels(3), with_channels(3), name));
        break;
      case 4:
        values.push_back(net.add(with_channels(3), with_channels(3)));
        break;
      case 5:
        values.push_back(net.dropout(x, 0.3F));
        break;
      case 6:
        values.push_back(net.upsample_bilinear(net.max_pool2d(x, PoolGeometry{}), 4, 4, false));
        break;
      default:
        values.push_back(net.concat({x, any()}));
    }
  }
  Value* last = values.back();
  if (random() % 2 == 0) last = net.concat({last, any(), any()});
  return random() % 2 == 0 ? last : net.conv2d(last, "head", {.out_channels = 2, .bias = true});
}

}  // namespace lockstep::test
