#include "nn/forward.h"

#include <utility>

#include "core/memory.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/predictor.h"
#include "nn/argmax.h"
#include "nn/image_layout.h"

namespace lockstep {
namespace {

bool is_plain(const Tensor& tensor) { return tensor.dtype == DType::kFloat32 && tensor.dense(); }

Storage allocate_floats(Backend& backend, const Shape& shape) {
  return backend.allocate(static_cast<std::size_t>(shape.elements()) * sizeof(float));
}

}  // namespace

Forward::Forward(ForwardOptions options, Backend& backend, ParameterStore& store)
    : options_(std::move(options)), backend_(backend), store_(store) {}

bool Forward::prepare(const Shape& input) {
  const bool fits = network_ != nullptr && network_->planned_batch() >= input.batch() &&
                    network_->input().shape.with_batch(input.batch()) == input;
  if (!fits) {
    release();  // first, so that two plans never lie in memory together
    plan(input);
  }
  network_->set_batch(input.batch());
  return !fits;
}

void Forward::plan(const Shape& input) {
  try {
    network_ = build_network(
        options_.model, options_.norm, input,
        {.training = false, .activations = options_.activations, .outputs = {options_.output}},
        backend_, store_);
    output_ = network_->output_index(options_.output);
    const Tensor& planned = network_->input();
    images_ = is_plain(planned) ? Storage() : allocate_floats(backend_, planned.shape);
  } catch (const MemoryError& error) {
    release();
    throw MemoryError(concat("an input of ", to_string(input), ": ", error.what()));
  }
}

void Forward::release() {
  network_.reset();
  images_ = {};
  staged_logits_ = {};
}

const Tensor& Forward::run(const float* images) {
  const Tensor& input = network_->input();
  if (images_.data() == nullptr) {
    backend_.upload(input, images);
  } else {
    const Tensor staged(images_.data(), input.shape);
    backend_.upload(staged, images);
    backend_.copy(staged, input, false);
  }
  network_->forward({.training = false, .communicator = options_.communicator});
  return output();
}

std::span<const float> Forward::read_logits() {
  Tensor logits = output();
  if (!is_plain(logits)) {
    if (staged_logits_.data() == nullptr) {  // many evaluations read none
      const Shape& largest = output().shape;
      staged_logits_ = allocate_floats(backend_, largest.with_batch(network_->planned_batch()));
    }
    logits = Tensor(staged_logits_.data(), output().shape);
    backend_.copy(output(), logits, false);
  }
  logits_.resize(static_cast<std::size_t>(logits.shape.elements()));
  backend_.download(logits_.data(), logits);
  backend_.synchronize();
  return logits_;
}

// --- Predictor: a Forward with a backend, a store and weights of its own ---

struct Predictor::Impl {
  /// A network with weights: made by the first images, which say what shape it has.
  struct Loaded {
    Loaded(const ForwardOptions& options, Backend& backend) : forward(options, backend, store) {}
    ParameterStore store;
    Forward forward;
  };

  Impl(Model&& model, const TensorMap& state_dict, const PredictorOptions& options)
      : backend(make_backend(options.device,
                             options.threads == 0 ? host_threads() : options.threads,
                             options.backend)),
        run({.model = std::move(model), .norm = options.norm, .output = options.output}),
        weights(state_dict) {}

  /// Images that do not fit leave nothing behind, so that others still may.
  void load(const Shape& shape);

  const std::unique_ptr<Backend> backend;
  const ForwardOptions run;
  TensorMap weights;  // until they are loaded
  std::unique_ptr<Loaded> network;
  std::vector<std::int32_t> classes;
  std::vector<float> reordered;  // images
};

void Predictor::Impl::load(const Shape& shape) {
  auto fresh = std::make_unique<Loaded>(run, *backend);
  fresh->forward.prepare(shape);
  try {
    load_state_dict(weights, fresh->store, *backend, true);
  } catch (const DataError& error) {
    throw DataError(concat(error.what(), " (the model was declared for images of the shape ",
                           to_string(shape), ")"));
  }
  weights.clear();
  network = std::move(fresh);
}

Predictor::Predictor(Model model, const TensorMap& weights, const PredictorOptions& options) {
  if (model == nullptr) throw ConfigError("a predictor needs a model; it is null");
  impl_ = std::make_unique<Impl>(std::move(model), weights, options);
}

Predictor::Predictor(Predictor&&) noexcept = default;
Predictor& Predictor::operator=(Predictor&&) noexcept = default;
Predictor::~Predictor() = default;

Prediction Predictor::predict(std::span<const float> images, const Shape& shape,
                              ImageLayout layout) {
  LOCKSTEP_CHECK(static_cast<std::int64_t>(images.size()) == shape.elements(), "expected ",
                 shape.elements(), " values of images ", to_string(shape), ", got ", images.size());
  Impl& impl = *impl_;
  impl.network ? static_cast<void>(impl.network->forward.prepare(shape)) : impl.load(shape);
  Forward& forward = impl.network->forward;
  const Shape output =
      forward.run(channels_last(images.data(), shape, layout, impl.reordered)).shape;
  const std::span<const float> logits = forward.read_logits();
  argmax_rows(logits, output.channels(), impl.classes);
  return {output, logits, impl.classes};
}

}  // namespace lockstep
