// What a built-in network makes of given weights and batches, for the Python tests beside it:
//
//   run_model CASE.safetensors RESULT.safetensors
//
// The case's metadata "case" has the options, with the name of the weights' file (none: random
// ones); its tensors are "images" [steps, N, H, W, 3] and "labels". The result has the logits of
// the first batch in evaluation, the gradients and running statistics of the first training step,
// and the state after all steps. With "save" the latter is also written there as save_safetensors
// does, and with "onnx" that folder gets folded.onnx, plain.onnx and, for the case's size alone,
// fixed.onnx.

#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/lockstep.h"
#include "step/replica.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

template <typename T>
std::vector<T> values(const HostTensor& tensor) {
  std::vector<T> result(tensor.data.size() / sizeof(T));
  std::memcpy(result.data(), tensor.data.data(), tensor.data.size());
  return result;
}

HostTensor host_tensor(const Shape& shape, const float* data) {
  HostTensor tensor;
  for (int axis = 0; axis < shape.rank(); ++axis) tensor.shape.push_back(shape[axis]);
  tensor.data.resize(static_cast<std::size_t>(shape.elements()) * sizeof(float));
  std::memcpy(tensor.data.data(), data, tensor.data.size());
  return tensor;
}

/// What the built-in networks have not got: every extent of a window different, and layers of
/// tensors that are no images.
Outputs layers(NetworkBuilder& net, Value* x, const NormLayer& norm, std::int64_t classes) {
  const ConvGeometry wide{.in_channels = 3,
                          .out_channels = 8,
                          .kernel_h = 3,
                          .kernel_w = 5,
                          .stride_h = 1,
                          .stride_w = 2,
                          .padding_h = 2,
                          .padding_w = 1,
                          .dilation_h = 2,
                          .dilation_w = 1};
  x = norm(net, net.conv2d(x, "wide", wide, true), "wide_bn", {.relu = true});
  ConvGeometry grouped = wide;
  grouped.in_channels = 8;
  grouped.groups = 2;
  x = norm(net, net.conv2d(x, "grouped", grouped, false), "grouped_bn");
  Value* averages = net.avg_pool2d(x, {3, 2, 2, 1, 1, 0});
  x = net.add(net.upsample_bilinear(averages, x, true), net.relu(net.linear(x, "rows", 8)));
  x = net.max_pool2d(x, {2, 3, 1, 2, 0, 1});
  x = net.dropout(net.adaptive_avg_pool2d(x, 2, 3), 0.5F);
  const std::int64_t batch = x->shape.batch();
  x = norm(net, net.reshape(x, {batch, 6, 8}), "line_bn", {.relu = true});
  x = net.linear(x, "line", 5);
  x = net.reshape(net.reshape(x, {batch, 3, 2, 5}), {batch, 30});
  x = norm(net, net.linear(x, "hidden", 12, false), "hidden_bn", {.relu = true});
  return {{"out", net.linear(x, "head", classes)}};
}

Architecture make_layers(const ModelOptions& options) {
  return {.model = [classes = options.num_classes](NetworkBuilder& net, Value* x,
                                                   const NormLayer& norm) {
    return layers(net, x, norm, classes);
  }};
}

class Case {
 public:
  explicit Case(const std::filesystem::path& path)
      : file_(read_safetensors(path)), about(Json::parse(file_.metadata.at("case"))) {
    const auto& shape = file_.tensors.at("images").shape;
    steps = shape[0], batch = shape[1];
    size = {static_cast<int>(shape[2]), static_cast<int>(shape[3])};
  }

  Batch step(std::int64_t index) const {
    Batch result;
    result.size = size;
    result.images = part(values<float>(file_.tensors.at("images")), index);
    const auto labels = part(values<std::uint8_t>(file_.tensors.at("labels")), index);
    result.labels.assign(labels.begin(), labels.end());
    result.class_pixels.resize(about["classes"]);
    for (const Label label : result.labels) {
      if (label != 255) ++result.class_pixels[label];
    }
    for (std::int64_t n = 0; n < batch; ++n) result.samples.push_back(index * batch + n);
    return result;
  }

  Architecture architecture() const {
    ModelTable models = builtin_models();
    models.push_back({"layers", make_layers});
    ModelOptions options{.arch = about["arch"],
                         .num_classes = about["classes"],
                         .aux_head = about["aux"],
                         .dropout = dropout(),
                         .output_stride = about["output_stride"]};
    if (about.contains("width")) options.width = about["width"].get<std::int64_t>();
    Architecture architecture = find_architecture(models, options);
    if (about.value("own", false)) {
      architecture.model = normalize_by_image(std::move(architecture.model));
    }
    return architecture;
  }

  NormLayer norm() const {
    NormLayer norm;
    norm.options.eps = about.value("eps", norm.options.eps);
    if (about.value("clamp", false)) norm.options.eps_mode = EpsMode::kClamp;
    norm.options.mode = mode_of(about.value("mode", "sync"));
    norm.options.virtual_devices = 2;
    norm.options.groups = about.value("groups", norm.options.groups);
    return norm;
  }

 private:
  SafetensorsFile file_;

  static BatchNormMode mode_of(const std::string& name) {
    for (const auto& named : names_of(BatchNormMode{})) {
      if (name == named.name || name == named.former) return named.value;
    }
    throw Error(concat("no mode of BatchNorm is called ", name));
  }
  std::optional<double> dropout() const {
    return about["segmentation"] ? std::optional(0.0) : std::nullopt;
  }
  template <typename T>
  std::vector<T> part(const std::vector<T>& all, std::int64_t index) const {
    const auto each = static_cast<std::ptrdiff_t>(all.size()) / steps;
    return {all.begin() + index * each, all.begin() + (index + 1) * each};
  }

 public:
  Json about;
  std::int64_t steps = 0, batch = 0;
  Size size;
};

/// As for a training's begin, but BatchNorm away from its initial values.
TensorMap random_weights(const Case& about) {
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 2);
  ParameterStore store;
  build_network(about.architecture().model, about.norm(),
                {1, about.size.height, about.size.width, 3}, {.training = false}, *backend, store);
  initialize_parameters(store, *backend, 7);
  TensorMap weights = state_dict(store, *backend);
  std::mt19937 generator(7);
  const auto draw = [&](const std::string& name, float least, float most) {
    std::uniform_real_distribution<float> uniform(least, most);
    HostTensor& tensor = weights.at(name);
    std::vector<float> numbers(tensor.data.size() / sizeof(float));
    for (float& number : numbers) number = uniform(generator);
    std::memcpy(tensor.data.data(), numbers.data(), tensor.data.size());
  };
  for (const auto& parameter : store.parameters()) {
    const bool gamma =
        parameter->kind == ParameterKind::kNorm && parameter->name.ends_with("weight");
    if (gamma) draw(parameter->name, 0.5F, 1);
    if (parameter->name.ends_with("bias")) draw(parameter->name, -0.3F, 0.3F);
  }
  for (const auto& state : store.batch_norms()) {
    draw(state->name + ".running_mean", -0.3F, 0.3F);
    draw(state->name + ".running_var", 0.5F, 2);
  }
  return weights;
}

TensorMap logits_of(const Case& about, const TensorMap& weights) {
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 2);
  ParameterStore store;
  const auto network = build_network(about.architecture().model, about.norm(),
                                     {about.batch, about.size.height, about.size.width, 3},
                                     {.training = false}, *backend, store);
  load_state_dict(weights, store, *backend, true);
  const Batch batch = about.step(0);
  backend->upload(network->input(), batch.images.data());
  StepContext context;
  context.training = false;
  network->forward(context);
  TensorMap result;
  for (const std::string& name : network->output_names()) {
    const Tensor& output = network->output(network->output_index(name));
    std::vector<float> host(static_cast<std::size_t>(output.shape.elements()));
    backend->download(host.data(), output);
    backend->synchronize();
    result["logits." + name] = host_tensor(output.shape, host.data());
  }
  return result;
}

void put(TensorMap& result, const std::string& prefix, const TensorMap& state) {
  for (const auto& [name, tensor] : state) {
    if (tensor.dtype == "F32") result[prefix + name] = tensor;
  }
}

/// After the first step, without weight decay: the first momentum is the gradient.
void put_gradients(TensorMap& result, DataParallel& training) {
  const std::vector<float> momentum = training.optimizer_state().slots.at("momentum_buffer");
  for (const auto& parameter : training.replica(0).store().parameters()) {
    result["grad." + parameter->name] =
        host_tensor(parameter->shape, momentum.data() + parameter->offset);
  }
}

TensorMap trained(const Case& about, const TensorMap& weights) {
  std::vector<NamedLoss> losses{{"out", CrossEntropyLoss{}}};
  if (about.about["aux"]) losses.push_back({"aux", CrossEntropyLoss{.weight = 0.5F}});
  DataParallel training(
      {.devices = parse_devices(about.about["devices"].get<std::string>()),
       .model = about.architecture().model,
       .norm = about.norm(),
       .input = {about.batch, about.size.height, about.size.width, 3},
       .losses = losses,
       .optimizer = Sgd{.lr = about.about["lr"], .momentum = 0.9F, .weight_decay = 0}});
  training.load_state_dict(weights);
  TensorMap result;
  for (std::int64_t step = 0; step < about.steps; ++step) {
    training.train_step(about.step(step), step);
    if (step > 0) continue;
    put(result, "first.", training.state_dict());
    put_gradients(result, training);
  }
  put(result, "final.", training.state_dict());
  if (about.about.contains("save")) {
    save_safetensors(about.about["save"].get<std::string>(), training.state_dict());
  }
  return result;
}

void save_onnx_files(const Case& about, const TensorMap& weights) {
  const std::filesystem::path folder = about.about["onnx"].get<std::string>();
  const Architecture architecture = about.architecture();
  const auto save = [&](const char* name, const OnnxOptions& options) {
    save_onnx(folder / name, architecture.model, about.norm(), weights, options);
  };
  OnnxOptions options{.size_divisor = architecture.size_divisor};
  save("folded.onnx", options);
  options.fold_batch_norm = false;
  save("plain.onnx", options);
  options.height = about.size.height;
  options.width = about.size.width;
  save("fixed.onnx", options);
}

void run(const char* input, const char* output) {
  const Case about(input);
  const TensorMap weights = about.about.contains("weights")
                                ? load_weights(about.about["weights"].get<std::string>())
                                : random_weights(about);
  TensorMap result = logits_of(about, weights);
  if (about.about["train"]) result.merge(trained(about, weights));
  if (about.about.contains("onnx")) save_onnx_files(about, weights);
  save_safetensors(output, result);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: run_model CASE.safetensors RESULT.safetensors\n";
    return 2;
  }
  try {
    lockstep::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
