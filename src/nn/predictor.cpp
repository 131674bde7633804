#include "lockstep/nn/predictor.h"

#include <optional>
#include <utility>

#include "lockstep/core/check.h"
#include "nn/argmax.h"

namespace lockstep {

struct Predictor::Impl {
  Impl(Model&& trained, const TensorMap& state_dict, const PredictorOptions& predictor_options);

  void prepare(const Shape& shape);
  void read_output(const Tensor& output);

  Model model;
  PredictorOptions options;
  std::unique_ptr<Backend> backend;
  std::optional<TensorMap> weights;  // until the first batch says what shape the network has
  ParameterStore store;
  std::unique_ptr<Network> network;
  std::size_t output = 0;
  std::vector<float> logits;
  std::vector<std::int32_t> classes;
};

Predictor::Impl::Impl(Model&& trained, const TensorMap& state_dict,
                      const PredictorOptions& predictor_options)
    : model(std::move(trained)), options(predictor_options), weights(state_dict) {
  backend = make_backend(options.device, options.threads > 0 ? options.threads : host_threads());
}

void Predictor::Impl::prepare(const Shape& shape) {
  const bool fits = network != nullptr && network->planned_batch() >= shape.batch() &&
                    network->input().shape.with_batch(shape.batch()) == shape;
  if (!fits) {
    network.reset();  // first, so that two plans never lie in memory together
    network = build_network(model, options.norm, shape,
                            {.training = false, .outputs = {options.output}}, *backend, store);
    output = network->output_index(options.output);
  }
  if (weights) {
    load_state_dict(*weights, store, *backend, true);
    weights.reset();
  }
  network->set_batch(shape.batch());
}

void Predictor::Impl::read_output(const Tensor& result) {
  logits.resize(static_cast<std::size_t>(result.shape.elements()));
  backend->download(logits.data(), result);
  backend->synchronize();
  argmax_rows(logits, result.shape.channels(), classes);
}

Predictor::Predictor(Model model, const TensorMap& weights, const PredictorOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), weights, options)) {}

Predictor::~Predictor() = default;

Prediction Predictor::predict(std::span<const float> images, const Shape& shape) {
  LOCKSTEP_CHECK(static_cast<std::int64_t>(images.size()) == shape.elements(), "expected ",
                 shape.elements(), " values of images ", to_string(shape), ", got ", images.size());
  Impl& impl = *impl_;
  impl.prepare(shape);
  impl.backend->upload(impl.network->input(), images.data());
  impl.network->forward({.training = false});
  const Tensor& output = impl.network->output(impl.output);
  impl.read_output(output);
  return {output.shape, impl.logits, impl.classes};
}

}  // namespace lockstep
