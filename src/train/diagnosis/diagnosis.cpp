#include "train/diagnosis/diagnosis.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <span>

#include "backend/moments.h"
#include "core/seconds_since.h"
#include "core/words.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "lockstep/data/loader.h"
#include "nn/norms/batch_norm_layer.h"
#include "run/trained_model.h"
#include "step/replica.h"
#include "train/replica_readings.h"
#include "train/settled_data.h"
#include "train/training.h"

namespace lockstep {
namespace {

using Images = std::span<const Batch>;  // of one image each

/// Images that have gone forward, some at a time.
struct Pass {
  std::vector<float> logits;  // of all positions
  std::int64_t classes = 0;
  double loss = 0;  // mean over labels
  /// [call][image], of the calls that took statistics of the images.
  std::vector<std::vector<PartMoments>> moments;
  std::vector<std::string> layers;  // [call]
  std::vector<double> eps;          // [call]
};

Batch join(Images images) {
  Batch batch;
  batch.size = images.front().size;
  for (const Batch& image : images) {
    batch.images.insert(batch.images.end(), image.images.begin(), image.images.end());
    batch.labels.insert(batch.labels.end(), image.labels.begin(), image.labels.end());
    batch.samples.insert(batch.samples.end(), image.samples.begin(), image.samples.end());
  }
  return batch;
}

void read_moments_by_image(Backend& backend, const Network& network, Pass& pass) {
  std::size_t call = 0;
  for (const BatchNormLayer* layer : batch_norms_of(network)) {
    const std::int64_t channels = layer->output()->shape.channels();
    if (layer->local_moments().empty()) continue;  // frozen
    if (call == pass.moments.size()) {
      pass.moments.emplace_back();
      pass.layers.push_back(layer->name());
      pass.eps.push_back(static_cast<double>(layer->config().norm.options.eps));
    }
    for (const StatSlot& slot : layer->local_moments()) {
      for (std::int64_t part = 0; part < slot.parts; ++part) {
        const StatSlot one{slot.count / slot.parts, slot.data + part * 2 * channels};
        const std::vector<float> read = read_moments(backend, one, channels);
        pass.moments[call].push_back({.count = one.count,
                                      .mean = {read.begin(), read.begin() + channels},
                                      .m2 = {read.begin() + channels, read.end()}});
      }
    }
    ++call;
  }
}

/// `together` images at a time, those at the end left out that are fewer.
Pass forward(DataParallel& replicas, Images images, std::int64_t together, EvalNormalizer by) {
  Pass pass;
  replicas.for_each_replica([&](Replica& replica) {
    Validation& validation = training_replica(replica).validation();
    validation.begin();
    std::int64_t terms = 0;
    const auto each = static_cast<std::size_t>(together);
    for (std::size_t first = 0; first + each <= images.size(); first += each) {
      const EvalOutcome outcome = validation.evaluate(join(images.subspan(first, each)), {by});
      pass.loss += outcome.loss;
      terms += outcome.terms;
      const std::span<const float> logits = validation.read_logits();
      pass.logits.insert(pass.logits.end(), logits.begin(), logits.end());
      read_moments_by_image(replica.backend(), validation.network(), pass);
    }
    pass.classes = validation.network().output().shape.channels();
    pass.loss /= static_cast<double>(std::max<std::int64_t>(terms, 1));
  });
  return pass;
}

/// Over positions, as a mean over classes.
double standard_deviation(const Pass& pass) {
  const auto classes = static_cast<std::size_t>(pass.classes);
  std::vector<double> sum(classes), squares(classes);
  for (std::size_t i = 0; i < pass.logits.size(); ++i) {
    sum[i % classes] += static_cast<double>(pass.logits[i]);
  }
  const auto positions = static_cast<double>(pass.logits.size() / classes);
  double total = 0;
  for (std::size_t i = 0; i < pass.logits.size(); ++i) {
    const double distance = static_cast<double>(pass.logits[i]) - sum[i % classes] / positions;
    total += distance * distance;
  }
  return std::sqrt(total / static_cast<double>(pass.logits.size()));
}

/// Root mean square, over the images that both have.
double distance(const Pass& a, const Pass& b) {
  const std::size_t count = std::min(a.logits.size(), b.logits.size());
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(a.logits[i]) - static_cast<double>(b.logits[i]);
    total += difference * difference;
  }
  return std::sqrt(total / static_cast<double>(count));
}

double changed_classes(const Pass& a, const Pass& b) {
  const auto classes = static_cast<std::ptrdiff_t>(a.classes);
  const auto largest = [&](const Pass& pass, std::ptrdiff_t at) {
    const auto first = pass.logits.begin() + at;
    return std::max_element(first, first + classes) - first;
  };
  const auto size = static_cast<std::ptrdiff_t>(a.logits.size());
  std::int64_t changed = 0;
  for (std::ptrdiff_t at = 0; at < size; at += classes) {
    changed += largest(a, at) != largest(b, at) ? 1 : 0;
  }
  return static_cast<double>(changed) / static_cast<double>(size / classes);
}

/// Gives the network the running statistics that training by such slices would leave behind.
void settle(DataParallel& replicas, const Pass& pass, std::int64_t together) {
  std::map<std::string, std::vector<PartMoments>> slices;
  for (std::size_t call = 0; call < pass.moments.size(); ++call) {
    const auto merged = merge_neighbours(pass.moments[call], together);
    auto& of_layer = slices[pass.layers[call]];
    of_layer.insert(of_layer.end(), merged.begin(), merged.end());
  }
  std::vector<ReplicaStatistics> statistics = read_running_statistics(replicas);
  for (BatchNormStatistics& layer : statistics.front()) {
    const auto found = slices.find(layer.layer);
    if (found == slices.end()) continue;
    BatchNormStatistics settled = settled_statistics(found->second);
    layer.mean = std::move(settled.mean);
    layer.var = std::move(settled.var);
  }
  write_running_statistics(replicas, statistics);
}

ImagesDiagnosis diagnose_images(DataParallel& replicas, Images images, const Pass& whole,
                                std::int64_t together) {
  ImagesDiagnosis result{.together = together};
  for (std::size_t call = 0; call < whole.moments.size(); ++call) {
    result.layers.push_back(noise_of(whole.moments[call], together, whole.eps[call]));
    result.layers.back().layer = whole.layers[call];
  }
  result.impossible = !result.layers.empty() && result.smallest().values == 1;
  if (result.impossible) return result;
  const Pass batch = forward(replicas, images, together, EvalNormalizer::kBatch);
  settle(replicas, batch, together);
  const Pass running = forward(replicas, images, together, EvalNormalizer::kRunning);
  result.loss = batch.loss;
  result.running_loss = running.loss;
  const double spread = standard_deviation(whole);
  result.logit_noise = distance(batch, whole) / spread;
  result.logit_disparity = distance(batch, running) / spread;
  result.changed = changed_classes(batch, running);
  return result;
}

Config on_one_device(const Config& trained) {
  Config config = without_demands(trained);
  config.batch.accumulate = 1;
  config.bn.sync_group = 0;
  if (config.bn.has_running_statistics()) config.bn.mode = BatchNormMode::kLocal;
  config.data.crops_per_image = 1;
  config.data.shuffle = true;  // neighbours are not to be alike
  return config;
}

/// How many images are looked at, and how many at a time.
struct Amounts {
  std::int64_t images = 0;
  std::vector<std::int64_t> images_per_device = {}, left_out = {};
};

Amounts amounts_of(const DiagnosisRequest& request, std::int64_t available) {
  constexpr std::int64_t kImages = 64;
  constexpr std::int64_t kImagesPerDevice[] = {1, 2, 4, 8};
  const auto looked_at = [&](std::int64_t least) {
    return std::min(request.images > 0 ? request.images : std::max(kImages, least), available);
  };
  Amounts amounts{.images_per_device = request.images_per_device};
  if (amounts.images_per_device.empty()) {
    for (const std::int64_t count : kImagesPerDevice) {
      // One stays, to be refused below.
      const bool fits = count == 1 || looked_at(2 * count) >= 2 * count;
      (fits ? amounts.images_per_device : amounts.left_out).push_back(count);
    }
  }
  const std::int64_t most =
      *std::max_element(amounts.images_per_device.begin(), amounts.images_per_device.end());
  amounts.images = looked_at(2 * most);
  if (amounts.images >= 2 * most) return amounts;
  throw ConfigError(concat("a diagnosis of ", count_of(most, "image"),
                           " per device compares at least two sets of them, ", 2 * most,
                           " images, and there are ", amounts.images,
                           request.images > 0 ? " (--images)" : " in the training split"));
}

std::vector<Batch> load_images(TrainLoader& loader, std::int64_t count) {
  std::vector<Batch> images;
  LongWork work("loading", "images", count);
  while (static_cast<std::int64_t>(images.size()) < count) {
    images.push_back(loader.next());
    work.advance();
  }
  return images;
}

std::unique_ptr<DataParallel> replica_for(const Config& config, const DiagnosisRequest& request) {
  const std::string text = devices_or_default(request.device);
  const std::vector<Device> devices{parse_devices(text).front()};
  begin_computing(config, devices);
  DataParallelOptions options = replica_options(config, devices, 1, small_image(config));
  options.backend.sums_by_image = true;
  return std::make_unique<DataParallel>(std::move(options));
}

WeightsOrigin origin_of(const DiagnosisRequest& request) {
  if (!request.weights.empty()) return WeightsOrigin::kTrained;
  const bool initial = request.config.model.backbone_weights.empty();
  return initial ? WeightsOrigin::kInitial : WeightsOrigin::kPretrained;
}

std::string load_weights(DataParallel& replicas, const DiagnosisRequest& request) {
  std::string from = "initial weights";
  const auto load = [&](const std::filesystem::path& file) {
    if (file.empty()) return;
    const ImportSummary summary = import_weights(replicas, file, request.config);
    check_finite(file, replicas.state_dict());
    from = concat(file.string(), ": ", describe_import(summary));
  };
  load(request.config.model.backbone_weights);
  load(request.weights);
  return from;
}

}  // namespace

const LayerNoise& ImagesDiagnosis::worst() const {
  return *std::max_element(
      layers.begin(), layers.end(),
      [](const LayerNoise& a, const LayerNoise& b) { return a.missed < b.missed; });
}

const LayerNoise& ImagesDiagnosis::smallest() const {
  return *std::min_element(
      layers.begin(), layers.end(),
      [](const LayerNoise& a, const LayerNoise& b) { return a.values < b.values; });
}

std::vector<std::string> layers_apart(const Diagnosis& diagnosis, std::size_t count) {
  if (!diagnosis.shares_statistics()) return {};
  std::vector<LayerNoise> layers = diagnosis.by_images.front().layers;
  std::stable_sort(layers.begin(), layers.end(),
                   [](const LayerNoise& a, const LayerNoise& b) { return a.ratio > b.ratio; });
  std::vector<std::string> names;
  for (const LayerNoise& layer : layers) {
    const bool known = std::find(names.begin(), names.end(), layer.layer) != names.end();
    if (names.size() < count && !known) names.push_back(layer.layer);
  }
  return names;
}

Diagnosis diagnose(const DiagnosisRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  Config config = on_one_device(request.config);
  settle_data(config);
  TrainLoader loader(config.data,
                     {.batch = 1, .seed = config.run.seed, .divisor = config.size_divisor()});
  const Amounts amounts = amounts_of(request, loader.dataset().size());
  const std::vector<Batch> images = load_images(loader, amounts.images);
  const auto replicas = replica_for(config, request);
  Diagnosis result{.size = loader.size(),
                   .images = static_cast<std::int64_t>(images.size()),
                   .global_batch = request.config.batch.global.value_or(0),
                   .origin = origin_of(request),
                   .weights = load_weights(*replicas, request),
                   .left_out = amounts.left_out};
  // Before a number of images settles others.
  std::optional<double> stored_loss;
  if (result.origin == WeightsOrigin::kTrained) {
    stored_loss = forward(*replicas, images, 1, EvalNormalizer::kRunning).loss;
  }
  const Pass whole = forward(*replicas, images, result.images, EvalNormalizer::kBatch);
  result.loss = whole.loss;
  LongWork work("diagnosing", "numbers of images", std::ssize(amounts.images_per_device));
  for (const std::int64_t together : amounts.images_per_device) {
    if (whole.moments.empty()) break;
    result.by_images.push_back(diagnose_images(*replicas, images, whole, together));
    result.by_images.back().stored_loss = stored_loss;
    judge(result.by_images.back(), result.global_batch, result.origin);
    work.advance();
  }
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace lockstep
