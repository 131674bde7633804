#include "step/toy_training.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/rng.h"
#include "lockstep/nn/models.h"

namespace lockstep::test {
namespace {

std::vector<float> read_floats(DataParallel& run, int rank, float* data, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  Backend& backend = run.replica(rank).backend();
  backend.download(values.data(), Tensor(data, Shape{1, elements}));
  backend.synchronize();
  return values;
}

void write_floats(Replica& replica, float* data, const std::vector<float>& values) {
  const auto elements = static_cast<std::int64_t>(values.size());
  replica.backend().upload(Tensor(data, Shape{1, elements}), values.data());
  replica.backend().synchronize();
}

std::vector<float> uniform_values(std::int64_t count, float lo, float hi, std::uint64_t item) {
  Rng rng(5, RngPurpose::kTest, item);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = rng.uniform(lo, hi);
  return values;
}

}  // namespace

DataParallelOptions toy_options(int ranks, BatchNormMode mode, std::int64_t batch) {
  DataParallelOptions options;
  options.devices = cpus(ranks);
  options.model = unet({.width = 4, .depth = 2, .num_classes = kClasses});
  options.norm.options.mode = mode;
  options.input = {batch, kSize.height, kSize.width, 3};
  options.losses = {{"out", CrossEntropyLoss{}}};
  options.backend.tf32 = false;
  options.seed = 9;
  options.optimizer = Sgd{.weight_decay = 1e-3F};
  return options;
}

DataParallelOptions all_reduced(DataParallelOptions options) {
  options.gradient_exchange = {GradientExchangeKind::kAllReduce, 1000, 2000};
  return options;
}

std::unique_ptr<DataParallel> make_toy(const DataParallelOptions& options) {
  auto run = std::make_unique<DataParallel>(options);
  Replica& first = run->replica(0);
  std::uint64_t item = 1'000;
  for (const auto& parameter : first.store().parameters()) {
    if (parameter->kind != ParameterKind::kNorm) continue;
    write_floats(first, parameter->value, uniform_values(parameter->elements, -0.5F, 1.5F, ++item));
  }
  for (const auto& layer : first.store().batch_norms()) {
    write_floats(first, layer->running_mean, uniform_values(layer->channels, -1, 1, ++item));
    write_floats(first, layer->running_var, uniform_values(layer->channels, 0.5F, 2, ++item));
    layer->num_batches_tracked = 3;
  }
  run->replicate();
  return run;
}

Batch toy_batch(std::int64_t count, std::int64_t step, Size size) {
  Batch batch;
  batch.size = size;
  batch.class_pixels.assign(kClasses, 0);
  const std::int64_t pixels = std::int64_t{size.height} * size.width;
  for (std::int64_t n = 0; n < count; ++n) {
    batch.samples.push_back(n);
    Rng rng(13, RngPurpose::kTest, static_cast<std::uint64_t>(n), static_cast<std::uint32_t>(step));
    const float level = rng.uniform(-1, 1);
    for (std::int64_t i = 0; i < pixels; ++i) {
      for (int c = 0; c < 3; ++c) batch.images.push_back(level + rng.normal());
      const auto label = static_cast<Label>(rng.below(kClasses));
      const bool ignored =
          count > 1 && rng.uniform() < static_cast<float>(n) / static_cast<float>(count - 1);
      batch.labels.push_back(ignored ? 255 : label);
      if (!ignored) ++batch.class_pixels[label];
    }
  }
  return batch;
}

std::vector<float> parameters(DataParallel& run, int rank) {
  const ParameterStore& store = run.replica(rank).store();
  return read_floats(run, rank, store.values(), store.elements());
}

std::vector<float> gradients(DataParallel& run, int rank) {
  const ParameterStore& store = run.replica(rank).store();
  std::vector<float> sum = read_floats(run, rank, store.grads(), store.elements());
  for (std::size_t part = 1; store.grads_of_part(part) != nullptr; ++part) {
    const std::vector<float> more =
        read_floats(run, rank, store.grads_of_part(part), store.elements());
    std::transform(sum.begin(), sum.end(), more.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

std::vector<float> statistics(DataParallel& run, int rank) {
  const ParameterStore& store = run.replica(rank).store();
  return read_floats(run, rank, store.statistics(), store.statistics_elements());
}

void copy_parameters(DataParallel& from, DataParallel& to) {
  Replica& first = to.replica(0);
  write_floats(first, first.store().values(), parameters(from, 0));
  write_floats(first, first.store().statistics(), statistics(from, 0));
  to.replicate();
}

void set_parameter(DataParallel& run, const std::string& name, float value) {
  if (run.rank_layout().process == 0) {
    Replica& first = run.replica(0);
    const Parameter& parameter = *first.store().find(name);
    write_floats(first, parameter.value,
                 std::vector<float>(static_cast<std::size_t>(parameter.elements), value));
  }
  run.replicate();
}

std::vector<double> train(DataParallel& run, const std::vector<std::int64_t>& batches) {
  std::vector<double> losses;
  std::int64_t step = 0;
  for (const std::int64_t count : batches) {
    losses.push_back(run.train_step(toy_batch(count, step), step, 0.1F).loss);
    ++step;
  }
  return losses;
}

Outcome outcome_of(DataParallel& run, std::vector<double> losses) {
  const int first = run.rank_layout().first_rank();
  return {parameters(run, first), statistics(run, first), run.optimizer_state(), std::move(losses)};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

void check_close(const Outcome& got, const Outcome& expected) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    CHECK(got.losses[i] == doctest::Approx(expected.losses[i]).epsilon(1e-6));
  }
  CHECK(distance(got.parameters, expected.parameters) < 1e-6);
  CHECK(distance(got.statistics, expected.statistics) < 1e-6);
  CHECK(distance(got.optimizer.slots.at("momentum_buffer"),
                 expected.optimizer.slots.at("momentum_buffer")) < 2e-6);
}

}  // namespace lockstep::test
