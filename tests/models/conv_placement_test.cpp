// What placement rests on: each convolution of the built-in models gives an image the same bits
// whatever the images beside it.

#include <doctest/doctest.h>

#include <set>
#include <tuple>

#include "backend/operand.h"
#include "lockstep/nn/model.h"
#include "nn/layers/conv2d_layer.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kImages = 3;

struct Convolution {
  ConvGeometry geometry;
  Shape input;  // of one image
};

std::string key_of(const Convolution& convolution) {
  return to_string(convolution.geometry) + " of " + to_string(convolution.input);
}

/// Every convolution of every built-in model once, for images of 48x40.
std::vector<Convolution> convolutions_of_all_models(Backend& backend) {
  std::vector<Convolution> result;
  std::set<std::string> seen;
  for (const ModelEntry& entry : builtin_models()) {
    ParameterStore store;
    NetworkBuilder net(backend, store);
    const Shape input{1, 48, 40, 3};
    const bool segments = entry.name.find("_resnet") != std::string::npos;
    const Architecture architecture =
        entry.make({.arch = entry.name, .num_classes = 5, .aux_head = segments});
    const auto network =
        net.build(architecture.model(net, net.input(input), {}), {.training = false});
    for (const auto& layer : network->layers()) {
      const auto* conv = dynamic_cast<const Conv2dLayer*>(layer.get());
      if (conv == nullptr) continue;
      Shape shape = layer->inputs()[0]->shape;
      if (shape.rank() == 2) shape = {1, 1, 1, shape.channels()};  // of a linear layer
      const Convolution found{conv->geometry(), shape};
      if (seen.insert(key_of(found)).second) result.push_back(found);
    }
  }
  return result;
}

struct Passes {
  Values y, grad_x, grad_weight;
};

Passes passes_of(Backend& backend, const Convolution& convolution, const Operand& x,
                 const Operand& grad_y, const Operand& weight, std::int64_t first,
                 std::int64_t count) {
  const ConvGeometry& geometry = convolution.geometry;
  const Shape input = convolution.input.with_batch(count);
  const auto zeros = [&](const Shape& shape) {
    return Operand(backend, shape, Values(static_cast<std::size_t>(shape.elements())));
  };
  const Operand y = zeros(geometry.output_shape(input)), grad_x = zeros(input);
  const Operand grad_weight = zeros({1, geometry.weight_elements()});
  backend.convolutions().prepare_conv2d(geometry, input, DType::kFloat32, true, true);
  const Tensor own_grad_y = grad_y.tensor().sample_range(first, count);
  const Tensor own_x = x.tensor().sample_range(first, count);
  backend.convolutions().conv2d_forward(geometry, own_x, weight.floats(), nullptr, y.tensor());
  backend.convolutions().conv2d_backward_data(geometry, own_grad_y, weight.floats(),
                                              grad_x.tensor());
  backend.convolutions().conv2d_backward_weights(geometry, own_x, own_grad_y, grad_weight.floats(),
                                                 nullptr);
  return {y.get(), grad_x.get(), grad_weight.get()};
}

void check_convolution(Backend& backend, const Convolution& convolution) {
  CAPTURE(key_of(convolution));
  const Shape input = convolution.input.with_batch(kImages);
  const Shape output = convolution.geometry.output_shape(input);
  const Shape flat{1, convolution.geometry.weight_elements()};
  const Operand x(backend, input, random_values(input, 1));
  const Operand grad_y(backend, output, random_values(output, 2));
  const Operand weight(backend, flat, random_values(flat, 3));
  const auto passes = [&](std::int64_t first, std::int64_t count) {
    return passes_of(backend, convolution, x, grad_y, weight, first, count);
  };
  const Passes together = passes(0, kImages);
  Values y, grad_x;
  std::vector<Values> grad_weights;
  for (std::int64_t image = 0; image < kImages; ++image) {
    const Passes alone = passes(image, 1);
    y.insert(y.end(), alone.y.begin(), alone.y.end());
    grad_x.insert(grad_x.end(), alone.grad_x.begin(), alone.grad_x.end());
    grad_weights.push_back(alone.grad_weight);
  }
  CHECK((together.y == y));
  CHECK((together.grad_x == grad_x));
  Values tree(grad_weights[0].size());
  for (std::size_t i = 0; i < tree.size(); ++i) {
    tree[i] = (grad_weights[0][i] + grad_weights[1][i]) + grad_weights[2][i];
  }
  CHECK((together.grad_weight == tree));
}

}  // namespace

TEST_CASE("placement: every convolution of every model, three images and three times one") {
  std::vector<Convolution> convolutions;
  {
    const auto backend = make_backend(Device{}, 1);
    convolutions = convolutions_of_all_models(*backend);
  }
  CHECK(convolutions.size() > 80);
  const auto backend = make_backend(Device{}, 2);
  for (const Convolution& convolution : convolutions) check_convolution(*backend, convolution);
}

}  // namespace lockstep::test
