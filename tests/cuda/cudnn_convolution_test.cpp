// What CudnnConvolutions does beside calling cuDNN: the order of weights that it prefers, and how
// often it converts them.

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "backend/operand.h"
#include "cuda/fake_cudnn.h"
#include "cuda/fake_runtime.h"
#include "kernels/cuda_backend.h"
#include "kernels/dispatch.h"
#include "lockstep/nn/network.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

const Device kGpu{DeviceKind::kCuda, 0, 0};

/// Launches of kernels, cuDNN's own left out.
template <typename Work>
std::int64_t launches_of(Backend& backend, const Work& work) {
  backend.synchronize();
  const std::int64_t before = emulation::launches();
  work();
  backend.synchronize();
  return emulation::launches() - before;
}

/// Other weights on a clock that says the same of all engines of an order.
bool takes_channels_last(float out_in_taps, float out_taps_in, std::int64_t height) {
  fake_cudnn::set_milliseconds(out_in_taps, out_taps_in);
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;  // a file, so that the clock decides
  setenv("LOCKSTEP_AUTOTUNE", (folder.path() / "autotune.json").c_str(), 1);
  gpu::CudaBackend backend(kGpu, {.tf32 = false});  // where two orders are tried
  setenv("LOCKSTEP_AUTOTUNE", "", 1);
  const ConvGeometry g = same_padding_conv(4, 4, 3);
  const Shape shape{1, height, 4, 4};  // a choice is made once for a shape
  backend.convolutions().prepare_conv2d(g, shape, DType::kFloat32, true, false);
  const Operand x(backend, shape), y(backend, shape), weight(backend, g.weight_shape());
  backend.convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
  backend.synchronize();
  fake_cudnn::set_milliseconds(1, 1);
  return fake_cudnn::last_was_channels_last();
}

TEST_CASE("weights lie channels-last, unless another order is faster by more than 2 %") {
  std::int64_t height = 40;
  CHECK(takes_channels_last(1.0F, 1.0F, ++height));
  CHECK(takes_channels_last(0.985F, 1.0F, ++height));
  CHECK_FALSE(takes_channels_last(0.975F, 1.0F, ++height));
  CHECK_FALSE(takes_channels_last(1.0F, 3.0F, ++height));
  CHECK(takes_channels_last(1.0F, 0.9F, ++height));
}

struct Conv {
  ConvGeometry geometry;
  Shape shape;
  Operand weight;
  Operand x, y, grad_y, grad_x;

  Conv(const TypedBackend& on, std::int64_t in, std::int64_t out, std::int64_t kernel)
      : geometry(same_padding_conv(in, out, kernel)),
        shape{2, 5, 4, in},
        weight(on.backend, geometry.weight_shape(), random_values(geometry.weight_shape(), 1)),
        x(on, shape, on.random(shape, 2)),
        y(on, shape.with_channels(out)),
        grad_y(on, shape.with_channels(out), on.random(shape.with_channels(out), 3)),
        grad_x(on, shape) {
    on->convolutions().prepare_conv2d(geometry, shape, on.dtype, true, true);
  }

  ConvWeights weights() const { return {geometry, weight.floats(), shape, x.dtype(), true, true}; }
  void add_gradient(Backend& backend, const Operand& to) const {
    backend.convolutions().conv2d_backward_weights(geometry, x.tensor(), grad_y.tensor(),
                                                   to.floats(), nullptr);
  }
  std::vector<Values> results(Backend& backend) const {
    backend.convolutions().conv2d_forward(geometry, x.tensor(), weight.floats(), nullptr,
                                          y.tensor());
    backend.convolutions().conv2d_backward_data(geometry, grad_y.tensor(), weight.floats(),
                                                grad_x.tensor());
    return {y.get(), grad_x.get()};
  }
};

TEST_CASE("weights are packed at once, for both passes, and give the same bits") {
  fake_runtime::use({.devices = 1});
  gpu::CudaBackend backend(kGpu);
  for (const DType dtype : kGpuTypes) {
    CAPTURE(std::string(to_string(dtype)));
    const TypedBackend on(backend, dtype);
    Conv a(on, 4, 6, 3), b(on, 6, 4, 1), c(on, 5, 4, 3);
    const Conv* convs[] = {&a, &b, &c};
    const auto results = [&] {
      std::vector<std::vector<Values>> all;
      for (const Conv* conv : convs) all.push_back(conv->results(backend));
      return all;
    };
    // 1x1 weights in fp32 are as cuDNN wants them.
    const std::int64_t own = dtype == DType::kFloat32 ? 4 : 6;
    std::vector<std::vector<Values>> unpacked, packed;
    CHECK(launches_of(backend, [&] { unpacked = results(); }) == own);
    const ConvWeights weights[] = {a.weights(), b.weights(), c.weights()};
    const auto pack = [&] { backend.convolutions().prepack_conv2d_weights(weights); };
    pack();
    const std::size_t allocated = backend.allocated_bytes();
    CHECK(launches_of(backend, pack) == 1);
    CHECK(launches_of(backend, [&] { packed = results(); }) == 0);
    CHECK(packed == unpacked);
    // They are those of the last call, and no others.
    a.weight.set(random_values(a.geometry.weight_shape(), 9));
    pack();
    packed = results();
    CHECK(packed != unpacked);
    CHECK(backend.allocated_bytes() == allocated);
    backend.convolutions().prepack_conv2d_weights({});
    CHECK(launches_of(backend, [&] { unpacked = results(); }) == own);
    CHECK(packed == unpacked);
  }
}

TEST_CASE("a network packs its weights once per forward pass") {
  fake_runtime::use({.devices = 1});
  gpu::CudaBackend backend(kGpu);
  ParameterStore store;
  NetworkBuilder net(backend, store, {});
  Value* x = net.input({3, 6, 6, 4});
  for (const char* name : {"a", "b", "c"})
    x = net.conv2d(x, name, same_padding_conv(4, 4, 3), false);
  const auto network = net.build(x, {.training = true, .activations = DType::kBFloat16});
  for (const std::int64_t batch : {3, 2, 0, 3}) {
    CAPTURE(batch);
    network->set_batch(batch);
    const std::size_t allocated = backend.allocated_bytes();
    CHECK(launches_of(backend, [&] { network->forward({}); }) == (batch > 0 ? 1 : 0));
    // The gradients of all three are brought home together.
    CHECK(launches_of(backend, [&] { network->backward({}); }) == (batch > 0 ? 1 : 0));
    CHECK(backend.allocated_bytes() == allocated);
  }
}

TEST_CASE("gradients that are left come home in one launch, with the bits of one at a time") {
  fake_runtime::use({.devices = 1});
  gpu::CudaBackend backend(kGpu);
  for (const DType dtype : kGpuTypes) {
    CAPTURE(std::string(to_string(dtype)));
    const TypedBackend on(backend, dtype);
    const Conv a(on, 4, 6, 3), b(on, 6, 4, 1), unused(on, 6, 6, 3);  // there is room for all three
    const auto first = [&](const Conv& conv) {
      return Operand(backend, conv.geometry.weight_shape(),
                     random_values(conv.geometry.weight_shape(), 4));
    };
    const auto add_all = [&](const Operand& of_a, const Operand& of_b) {
      a.add_gradient(backend, of_a);
      b.add_gradient(backend, of_b);
      a.add_gradient(backend, of_a);  // the sum of two, in this order
    };
    backend.convolutions().prepack_conv2d_weights({});  // nothing is left of others
    const Operand a_at_once = first(a), b_at_once = first(b);
    CHECK(launches_of(backend, [&] { add_all(a_at_once, b_at_once); }) == 3);

    const ConvWeights weights[] = {a.weights(), b.weights(), unused.weights()};
    backend.convolutions().prepack_conv2d_weights(weights);
    const Operand a_left = first(a), b_left = first(b);
    const auto finish = [&] { backend.convolutions().finish_conv2d_gradients(); };
    CHECK(launches_of(backend, [&] { add_all(a_left, b_left); }) == 1);  // no two of one weight
    CHECK(a_left.get() != a_at_once.get());
    CHECK(launches_of(backend, finish) == 1);
    CHECK(a_left.get() == a_at_once.get());
    CHECK(b_left.get() == b_at_once.get());
    CHECK(launches_of(backend, finish) == 0);

    // A pass that failed has left some: they are nobody's.
    a.add_gradient(backend, a_left);
    backend.convolutions().prepack_conv2d_weights(weights);
    CHECK(launches_of(backend, finish) == 0);
    CHECK(a_left.get() == a_at_once.get());
  }
}

TEST_CASE("a handle is destroyed on its device, whatever the thread's current one is") {
  fake_runtime::use({.devices = 2});
  const int before = fake_cudnn::handles_destroyed_elsewhere();
  { const gpu::CudaBackend backend({DeviceKind::kCuda, 1, 0}); }
  {
    auto backend = std::make_unique<gpu::CudaBackend>(Device{DeviceKind::kCuda, 1, 0});
    gpu::make_current(0);
    backend.reset();
  }
  CHECK(fake_cudnn::handles_destroyed_elsewhere() == before);
}

}  // namespace
}  // namespace lockstep::test
