#include "checks/probe.h"

#include <chrono>
#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

/// Of dropout's mask, the same in every pass.
constexpr std::uint64_t kDropoutSeed = 7;

SyncGroupOptions group_options(TransportKind transport) {
  SyncGroupOptions options;
  options.transport = transport;
  options.stall_timeout = std::chrono::seconds(20);
  return options;
}

Floats download(Backend& backend, const Tensor& tensor) {
  Floats values(static_cast<std::size_t>(tensor.shape.elements()));
  backend.download(values.data(), tensor);
  backend.synchronize();
  return values;
}

void upload(Backend& backend, const Tensor& tensor, const float* values) {
  backend.upload(tensor, values);
  backend.synchronize();
}

Tensor row(float* data, std::int64_t elements) { return {data, Shape{1, elements}}; }

void append(Floats& all, const Floats& part) { all.insert(all.end(), part.begin(), part.end()); }

}  // namespace

Probe::Probe(ProbeOptions options)
    : options_(std::move(options)),
      group_(std::make_unique<SyncGroup>(options_.devices, group_options(options_.transport))),
      ranks_(std::make_unique<std::vector<Rank>>(options_.devices.size())),
      threads_(options_.devices, *group_) {
  const PlanOptions plan{.training = options_.training, .input_grad = options_.training};
  const int size = threads_.size();
  const Shape part = options_.input.with_batch(chunk_sizes(options_.input.batch(), size).front());
  threads_.run([&](int rank) {
    Rank& own = (*ranks_)[static_cast<std::size_t>(rank)];
    // What trains on a CPU; on a GPU TF32 would hide an error.
    const Device& device = options_.devices[static_cast<std::size_t>(rank)];
    own.backend = make_backend(device, 1, {.tf32 = device.kind == DeviceKind::kCpu});
    group_->at(rank).attach(*own.backend);
    own.network = build_network(options_.model, options_.norm, part, plan, *own.backend, own.store);
  });
  set_parameters(random_parameters());
}

// Peers read each other's memory: none of it goes before all threads are done. What a thread that
// could not be stopped still uses stays for good.
Probe::~Probe() {
  if (threads_.has_stuck_thread()) {
    static_cast<void>(ranks_.release());
    static_cast<void>(group_.release());
  } else if (!threads_.has_failed()) {
    threads_.run(
        [&](int rank) { (*ranks_)[static_cast<std::size_t>(rank)].backend->synchronize(); });
  }
}

NamedFloats Probe::random_parameters() const {
  NamedFloats all;
  for (const auto& parameter : ranks_->front().store.parameters()) {
    Floats values = normal_floats(parameter->elements, 100 + all.size(), 0.4F);
    if (parameter->kind == ParameterKind::kNorm) {
      const bool gamma = parameter->name.ends_with(".weight");
      for (float& value : values) {
        value = gamma ? 1.0F + 0.5F * std::tanh(value) : 0.2F * std::tanh(value);
      }
    }
    all[parameter->name] = values;
  }
  return all;
}

void Probe::set_parameters(const NamedFloats& values) {
  threads_.run([&](int rank) {
    const Rank& own = (*ranks_)[static_cast<std::size_t>(rank)];
    for (const auto& parameter : own.store.parameters()) {
      upload(*own.backend, row(parameter->value, parameter->elements),
             values.at(parameter->name).data());
    }
  });
}

NamedFloats Probe::statistics(int wanted) {
  NamedFloats all;
  threads_.run([&](int rank) {
    if (rank != wanted) return;
    const Rank& own = (*ranks_)[static_cast<std::size_t>(rank)];
    for (const auto& state : own.store.batch_norms()) {
      all[state->name + ".running_mean"] =
          download(*own.backend, row(state->running_mean, state->channels));
      all[state->name + ".running_var"] =
          download(*own.backend, row(state->running_var, state->channels));
    }
  });
  return all;
}

void Probe::set_statistics(const NamedFloats& values) {
  threads_.run([&](int rank) {
    const Rank& own = (*ranks_)[static_cast<std::size_t>(rank)];
    for (const auto& state : own.store.batch_norms()) {
      upload(*own.backend, row(state->running_mean, state->channels),
             values.at(state->name + ".running_mean").data());
      upload(*own.backend, row(state->running_var, state->channels),
             values.at(state->name + ".running_var").data());
    }
  });
}

void Probe::run(const Floats& input, const Floats* grad_output) {
  const Shape& shape = options_.input;
  const std::int64_t sample = shape.rows_per_sample() * shape.channels();
  const auto samples = static_cast<std::int64_t>(input.size()) / sample;
  const std::vector<std::int64_t> counts = chunk_sizes(samples, threads_.size());
  threads_.run([&](int rank) {
    std::int64_t begin = 0;
    for (int before = 0; before < rank; ++before) begin += counts[static_cast<std::size_t>(before)];
    run_rank(rank, begin, counts[static_cast<std::size_t>(rank)], input, grad_output);
  });
}

void Probe::run_rank(int rank, std::int64_t begin, std::int64_t count, const Floats& input,
                     const Floats* grad_output) {
  Rank& own = (*ranks_)[static_cast<std::size_t>(rank)];
  Backend& backend = *own.backend;
  Network& network = *own.network;
  const auto offset = [begin](const Tensor& tensor) {
    return begin * tensor.shape.rows_per_sample() * tensor.shape.channels();
  };
  network.set_batch(count);
  upload(backend, network.input(), input.data() + offset(network.input()));
  StepContext context;
  context.training = options_.training;
  context.communicator = group_->at(rank);
  context.seed = kDropoutSeed;
  context.sample_offset = begin;
  if (options_.training) network.zero_grad();
  network.forward(context);
  own.output = download(backend, network.output());
  if (grad_output == nullptr) return;
  upload(backend, network.output_grad(), grad_output->data() + offset(network.output()));
  network.backward(context);
  own.input_grad = download(backend, network.input_grad());
  for (const auto& parameter : own.store.parameters()) {
    own.grads[parameter->name] = download(backend, row(parameter->grad, parameter->elements));
  }
}

Floats Probe::forward(const Floats& input) {
  run(input, nullptr);
  Floats output;
  for (const Rank& rank : *ranks_) append(output, rank.output);
  return output;
}

ProbePass Probe::step(const Floats& input, const Floats& grad_output) {
  run(input, &grad_output);
  ProbePass pass;
  for (const Rank& rank : *ranks_) {
    append(pass.output, rank.output);
    append(pass.input_grad, rank.input_grad);
    for (const auto& [name, grad] : rank.grads) {
      Doubles& sum = pass.grads.try_emplace(name, grad.size(), 0.0).first->second;
      for (std::size_t i = 0; i < grad.size(); ++i) sum[i] += static_cast<double>(grad[i]);
    }
  }
  return pass;
}

}  // namespace lockstep
