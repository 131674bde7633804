// What a built-in network makes of given weights and batches, for torchvision_test.py:
//
//   run_model CASE.safetensors RESULT.safetensors
//
// The case's metadata "case" has the options; its tensors are "images" [steps, N, H, W, 3],
// "labels" and the weights' file. The result has the logits of the first batch in evaluation, the
// gradients and running statistics of the first training step, and the state after all steps.

#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"
#include "parallel/replica.h"

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
    return find_architecture(builtin_models(), {.arch = about["arch"],
                                                .num_classes = about["classes"],
                                                .aux_head = about["aux"],
                                                .dropout = dropout(),
                                                .output_stride = about["output_stride"]});
  }

 private:
  SafetensorsFile file_;

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

TensorMap logits_of(const Case& about, const TensorMap& weights) {
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 2);
  ParameterStore store;
  const auto network = build_network(about.architecture().model, {},
                                     {about.batch, about.size.height, about.size.width, 3},
                                     {.training = false}, *backend, store);
  import_weights(weights, store, *backend, true);
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
       .norm = SyncBatchNorm(),
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
  return result;
}

void run(const char* input, const char* output) {
  const Case about(input);
  const TensorMap weights = load_weights(about.about["weights"].get<std::string>());
  TensorMap result = logits_of(about, weights);
  if (about.about["train"]) result.merge(trained(about, weights));
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
