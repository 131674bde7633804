// BatchNorm in every mode against PyTorch: the whole batch in one call for `sync`, call by call
// over torch.chunk for `local` and `virtual`.

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/nn/network.h"
#include "lockstep/parallel/data_parallel.h"
#include "oracle/golden.h"
#include "step/replica_group.h"

namespace lockstep::oracle {
namespace {

/// One device's copy of the layer under test. With a residual the input holds [x, residual] in its
/// channels and two 1x1 convolutions of zeros and ones, which are exact, take them apart.
struct Part {
  std::unique_ptr<Backend> backend;
  ParameterStore store;
  std::unique_ptr<Network> network;
  std::int64_t first = 0, count = 0;  // samples of the global batch
};

struct LayerUnderTest {
  const Golden& golden;
  std::string name;
  nlohmann::json about;
  BatchNormOptions options;
  Shape shape;  // of the global batch
  bool residual = false;

  std::string tensor(const std::string& kind) const { return name + "." + kind; }
};

LayerUnderTest read_layer(const Golden& golden, const std::string& name) {
  LayerUnderTest layer{golden, name, golden.metadata(name), {}, golden.shape(name + ".x0"), false};
  layer.options.eps = layer.about["eps"];
  layer.options.affine = layer.about["affine"];
  layer.options.track_running_stats = layer.about["track_running_stats"];
  layer.options.momentum.reset();
  if (!layer.about["momentum"].is_null()) layer.options.momentum = layer.about["momentum"];
  layer.residual = layer.about["residual"];
  return layer;
}

void set_parameter(Part& part, const std::string& name, const std::vector<float>& values) {
  const Parameter* parameter = part.store.find(name);
  REQUIRE(parameter != nullptr);
  upload(*part.backend, Tensor(parameter->value, Shape{1, parameter->elements}), values.data());
}

/// Row c of [C, 2C] picks channel offset + c.
std::vector<float> selection(std::int64_t channels, std::int64_t offset) {
  std::vector<float> weight(2 * channels * channels);
  for (std::int64_t c = 0; c < channels; ++c) weight[c * 2 * channels + offset + c] = 1;
  return weight;
}

void build(const LayerUnderTest& layer, Part& part) {
  const std::int64_t channels = layer.shape.channels();
  const Shape input = layer.shape.with_batch(std::max<std::int64_t>(part.count, 1))
                          .with_channels(layer.residual ? 2 * channels : channels);
  NetworkBuilder net(*part.backend, part.store, layer.options);
  Value* x = net.input(input);
  NormCall call{.relu = layer.about["relu"].get<bool>()};
  if (layer.residual) {
    call.residual = net.conv2d(x, "pick_residual", {.out_channels = channels});
    x = net.conv2d(x, "pick_x", {.out_channels = channels});
  }
  part.network = net.build(net.batch_norm(x, "bn", call), {.training = true, .input_grad = true});
  part.network->set_batch(part.count);
  if (layer.residual) {
    set_parameter(part, "pick_x.weight", selection(channels, 0));
    set_parameter(part, "pick_residual.weight", selection(channels, channels));
  }
  if (layer.options.affine) {
    set_parameter(part, "bn.weight", layer.golden.floats(layer.tensor("weight")));
    set_parameter(part, "bn.bias", layer.golden.floats(layer.tensor("bias")));
  }
}

/// [x, residual] of pass `pass`, or x alone.
std::vector<float> input_of(const LayerUnderTest& layer, const std::string& pass) {
  const std::vector<float> x = layer.golden.floats(layer.tensor("x" + pass));
  if (!layer.residual) return x;
  const std::vector<float> residual = layer.golden.floats(layer.tensor("residual" + pass));
  const std::int64_t channels = layer.shape.channels();
  std::vector<float> both;
  for (std::size_t row = 0; row < x.size(); row += channels) {
    both.insert(both.end(), x.begin() + row, x.begin() + row + channels);
    both.insert(both.end(), residual.begin() + row, residual.begin() + row + channels);
  }
  return both;
}

/// Channels [offset, offset + C) of rows of `width` channels.
std::vector<float> channels_of(const std::vector<float>& rows, std::int64_t width,
                               std::int64_t offset, std::int64_t channels) {
  std::vector<float> result;
  for (std::size_t row = 0; row < rows.size(); row += width) {
    result.insert(result.end(), rows.begin() + row + offset,
                  rows.begin() + row + offset + channels);
  }
  return result;
}

struct PassResult {
  std::vector<float> y, grad_input, grad_weight, grad_bias;
};

PassResult run_pass(Part& part, const LayerUnderTest& layer, const std::string& pass,
                    const StepContext& context) {
  Backend& backend = *part.backend;
  const std::int64_t per_sample = layer.shape.elements() / layer.shape.batch();
  const std::int64_t width = layer.residual ? 2 : 1;
  upload(backend, part.network->input(),
         input_of(layer, pass).data() + part.first * per_sample * width);
  part.network->zero_grad();
  part.network->forward(context);
  PassResult result;
  result.y = download(backend, part.network->output());
  if (!context.training) return result;
  upload(backend, part.network->output_grad(),
         layer.golden.floats(layer.tensor("grad_y" + pass)).data() + part.first * per_sample);
  part.network->backward(context);
  result.grad_input = download(backend, part.network->input_grad());
  if (layer.options.affine) {
    const Parameter* weight = part.store.find("bn.weight");
    const Parameter* bias = part.store.find("bn.bias");
    result.grad_weight = download(backend, weight->grad, weight->elements);
    result.grad_bias = download(backend, bias->grad, bias->elements);
  }
  return result;
}

void append(std::vector<float>& all, const std::vector<float>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

void add(std::vector<float>& sum, const std::vector<float>& part) {
  sum.resize(part.size());
  for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

PassResult gather(const std::vector<PassResult>& parts) {
  PassResult all;
  for (const PassResult& part : parts) {
    append(all.y, part.y);
    append(all.grad_input, part.grad_input);
    add(all.grad_weight, part.grad_weight);
    add(all.grad_bias, part.grad_bias);
  }
  return all;
}

void check_pass(const LayerUnderTest& layer, const PassResult& all, const std::string& pass) {
  const std::int64_t channels = layer.shape.channels();
  const std::int64_t width = layer.residual ? 2 * channels : channels;
  check_result(layer.golden, layer.tensor("y" + pass), all.y);
  check_result(layer.golden, layer.tensor("grad_x" + pass),
               channels_of(all.grad_input, width, 0, channels));
  if (layer.residual) {
    check_result(layer.golden, layer.tensor("grad_residual" + pass),
                 channels_of(all.grad_input, width, channels, channels));
  }
  if (layer.options.affine) {
    check_result(layer.golden, layer.tensor("grad_weight" + pass), all.grad_weight);
    check_result(layer.golden, layer.tensor("grad_bias" + pass), all.grad_bias);
  }
}

void check_running(const LayerUnderTest& layer, const Part& part, const std::string& pass) {
  if (!layer.options.track_running_stats) return;
  const BatchNormState& state = *part.store.batch_norms()[0];
  check_result(layer.golden, layer.tensor("running_mean" + pass),
               download(*part.backend, state.running_mean, state.channels));
  check_result(layer.golden, layer.tensor("running_var" + pass),
               download(*part.backend, state.running_var, state.channels));
}

/// Evaluation of the first device's samples with its running statistics.
void check_evaluation(const LayerUnderTest& layer, Part& part) {
  if (!layer.options.track_running_stats) return;
  const PassResult result = run_pass(part, layer, "0", {.training = false});
  const auto first = static_cast<std::ptrdiff_t>(result.y.size());
  const std::vector<double> reference = layer.golden.doubles(layer.tensor("y_eval.f64"));
  const std::vector<float> torch = layer.golden.floats(layer.tensor("y_eval.f32"));
  const Distance error = distance({reference.begin(), reference.begin() + first},
                                  {torch.begin(), torch.begin() + first}, result.y);
  CHECK(error.ours <= kFactor * error.torch + kFloorUlps * 0x1p-24);
}

/// Three training passes and an evaluation on `devices` devices.
void check_batch_norm(LayerUnderTest layer, BatchNormMode mode, int devices, int virtual_devices) {
  CAPTURE(layer.name);
  CAPTURE(devices);
  layer.options.mode = mode;
  layer.options.virtual_devices = virtual_devices;
  std::vector<Device> places;
  for (int rank = 0; rank < devices; ++rank) places.push_back({DeviceKind::kCpu, rank, 0});
  SyncGroup communicators(places);
  ReplicaGroup group(places, communicators);
  std::vector<Part> parts(devices);
  const std::vector<std::int64_t> sizes = chunk_sizes(layer.shape.batch(), devices);
  for (int rank = 0; rank < devices; ++rank) {
    parts[rank].count = sizes[rank];
    parts[rank].first = std::accumulate(sizes.begin(), sizes.begin() + rank, std::int64_t{0});
  }
  group.run([&](int rank) {
    parts[rank].backend = make_backend(places[rank], 1);
    build(layer, parts[rank]);
  });
  for (const std::string pass : {"0", "1", "2"}) {
    std::vector<PassResult> results(devices);
    group.run([&](int rank) {
      results[rank] = run_pass(parts[rank], layer, pass,
                               {.training = true, .communicator = communicators.at(rank)});
    });
    check_pass(layer, gather(results), pass);
    check_running(layer, parts[0], pass);
    if (mode == BatchNormMode::kSync) check_running(layer, parts[devices - 1], pass);
  }
  check_evaluation(layer, parts[0]);
}

}  // namespace

TEST_CASE("synchronized BatchNorm is PyTorch's BatchNorm on the whole batch") {
  const auto golden = load_golden("batch_norm");
  if (!golden) return;
  for (const std::string& name : golden->cases()) {
    const LayerUnderTest layer = read_layer(*golden, name);
    if (layer.about["chunks"] != 1) continue;
    for (const int devices : {1, 2, 3, 8}) {
      check_batch_norm(layer, BatchNormMode::kSync, devices, 1);
    }
    check_batch_norm(layer, BatchNormMode::kLocal, 1, 1);
    check_batch_norm(layer, BatchNormMode::kGhost, 1, 1);
  }
}

TEST_CASE("local and virtual BatchNorm are PyTorch's BatchNorm chunk by chunk") {
  const auto golden = load_golden("batch_norm");
  if (!golden) return;
  for (const std::string& name : golden->cases()) {
    const LayerUnderTest layer = read_layer(*golden, name);
    const int chunks = layer.about["chunks"];
    if (chunks == 1) continue;
    check_batch_norm(layer, BatchNormMode::kLocal, chunks, 1);
    check_batch_norm(layer, BatchNormMode::kGhost, 1, chunks);
  }
}

}  // namespace lockstep::oracle
