#include "report/data/examples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>

#include "data/sample_store.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/io/image.h"
#include "lockstep/nn/predictor.h"
#include "run/trained_model.h"

namespace lockstep {
namespace {

// Whole images are small and say little each.
constexpr std::size_t kShown = 3, kShownClassified = 8;
// Enough to choose among, and not so many that large images keep a report waiting.
constexpr std::int64_t kMostCandidates = 24, kPixelBudget = 2'000'000;

using Runs = std::vector<const RunRecord*>;

/// A run of each mode, all of the lowest seed that every mode has finished.
Runs chosen_runs(const ReportData& data) {
  std::set<std::uint64_t> seeds;
  for (const RunRecord& run : data.runs) seeds.insert(run.seed);
  for (const std::uint64_t seed : seeds) {
    Runs runs;
    for (const RunRecord& run : data.runs) {
      if (run.seed == seed && run.summary) runs.push_back(&run);
    }
    if (!runs.empty() && runs.size() == data.modes().size()) return runs;
  }
  throw Error("no seed is finished in every mode");
}

Device device_of(const RunRecord& run) {
  const std::vector<Device> devices = parse_devices(run.devices);
  const bool here =
      devices.front().kind == DeviceKind::kCpu || devices.front().ordinal < cuda_device_count();
  return here ? devices.front() : Device{};
}

/// What a mode's network says of a batch.
class ModePredictor {
 public:
  ModePredictor(const RunRecord& run, const Tables& tables)
      : model_(read_trained_model({run.folder, {}, {}, {}, &tables})),
        predictor_(model_.architecture.model, model_.weights,
                   {.device = device_of(run),
                    .norm = NormLayer(model_.config.bn),
                    .backend = {.tf32 = model_.config.run.tf32}}) {}

  const TrainedModel& model() const { return model_; }
  int channels() const { return model_.config.data.channels; }
  int divisor() const { return static_cast<int>(model_.architecture.size_divisor); }

  /// The classes of the one image of `batch`, without its padding.
  LabelMap predict(const Batch& batch, const LabelMap& truth) {
    const Shape shape{1, batch.size.height, batch.size.width, channels()};
    const std::span<const std::int32_t> classes = predictor_.predict(batch.images, shape).classes;
    LabelMap labels{truth.height, truth.width, {}};
    const int stride = truth.width * truth.height == 1 ? 1 : batch.size.width;
    for (int y = 0; y < truth.height; ++y) {
      for (int x = 0; x < truth.width; ++x) {
        labels.pixels.push_back(
            static_cast<Label>(classes[static_cast<std::size_t>(y * stride + x)]));
      }
    }
    return labels;
  }

 private:
  TrainedModel model_;
  Predictor predictor_;
};

using Predictors = std::vector<std::unique_ptr<ModePredictor>>;

void check_same_data(const Predictors& predictors) {
  const DataOptions& first = predictors.front()->model().config.data;
  for (const auto& predictor : predictors) {
    const DataOptions& other = predictor->model().config.data;
    const bool same = other.layout == first.layout && other.root == first.root &&
                      other.val == first.val && other.num_classes == first.num_classes &&
                      other.resize == first.resize && other.channels == first.channels;
    if (!same) throw Error("the modes were not validated on the same images");
  }
}

std::size_t shown_of(Task task) { return task == Task::kSegmentation ? kShown : kShownClassified; }

std::int64_t candidates_of(const SampleStore& store) {
  const Size size = store.image_size(0);
  const std::int64_t affordable = kPixelBudget / (std::int64_t{size.height} * size.width);
  const auto least = static_cast<std::int64_t>(shown_of(store.task()));
  return std::min(store.size(), std::clamp(affordable, least, kMostCandidates));
}

std::vector<Example> predict_all(Predictors& predictors) {
  const Config& config = predictors.front()->model().config;
  const SampleStore store(config.data, Split::kVal, config.run.seed);
  const ValLoader loader(config.data, config.run.seed);
  std::vector<Example> examples;
  SampleScratch scratch;
  for (std::int64_t i = 0; i < candidates_of(store); ++i) {
    const Sample& sample = store.fetch(i, scratch);
    Example example{
        store.describe(i), picture_of(sample.image, config.data.display), sample.labels, {}};
    for (const auto& predictor : predictors) {
      example.predictions.push_back(
          predictor->predict(loader.load(i, 1, predictor->divisor()), example.truth));
    }
    examples.push_back(std::move(example));
  }
  return examples;
}

/// Places of the candidates by falling value; those without one come last.
std::vector<std::size_t> order_by(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::isfinite(values[a]) && !(values[b] >= values[a]);
  });
  return order;
}

using Value = std::function<double(const Example&)>;

std::vector<std::size_t> order_by(const Examples& examples, const Value& value) {
  std::vector<double> values;
  for (const Example& example : examples.samples) values.push_back(value(example));
  return order_by(values);
}

struct Choice {
  std::vector<std::size_t> places;
  std::string rule;
};

/// Of one mode, maps: the best, the middle and the worst.
Choice best_to_worst(const Examples& examples) {
  std::vector<std::size_t> order =
      order_by(examples, [&](const Example& example) { return accuracy(examples, example, 0); });
  if (order.size() > kShown) order = {order.front(), order[order.size() / 2], order.back()};
  return {order,
          "the one with most labelled pixels right, the one in the middle and the one with "
          "fewest"};
}

Choice choice_of(const Examples& examples) {
  const bool maps = examples.task == Task::kSegmentation, several = examples.modes.size() > 1;
  if (maps && !several) return best_to_worst(examples);
  std::vector<std::size_t> order = order_by(examples, [&](const Example& example) {
    return several ? disagreement(examples, example) : 1 - accuracy(examples, example, 0);
  });
  order.resize(std::min(order.size(), shown_of(examples.task)));
  if (maps) {
    return {order, fmt::format("the {} on which the modes disagree in most labelled pixels: "
                               "extremes, and no picture of the mean",
                               order.size())};
  }
  return {order,
          fmt::format("the first {} that {}, and where these are fewer the first others",
                      order.size(), several ? "the modes disagree on" : "are classified wrong")};
}

void choose(Examples& examples) {
  const Choice choice = choice_of(examples);
  examples.rule =
      fmt::format("Of the first {} validation images {}", examples.samples.size(), choice.rule);
  std::vector<Example> kept;
  for (const std::size_t i : choice.places) kept.push_back(std::move(examples.samples[i]));
  examples.samples = std::move(kept);
}

Examples examples_of(const ReportData& data, const Tables& tables) {
  Examples examples;
  Predictors predictors;
  for (const RunRecord* run : chosen_runs(data)) {
    predictors.push_back(std::make_unique<ModePredictor>(*run, tables));
    examples.modes.push_back({run->mode, predictors.back()->model().checkpoint.string()});
    examples.seed = run->seed;
  }
  check_same_data(predictors);
  const Config& config = predictors.front()->model().config;
  examples.task = predictors.front()->model().architecture.task;
  examples.classes = class_names(config.data);
  examples.colors = class_colors(config.data);
  examples.ignore_index = ignored_label(config.data);
  examples.samples = predict_all(predictors);
  choose(examples);
  return examples;
}

}  // namespace

double disagreement(const Examples& examples, const Example& example) {
  std::int64_t labelled = 0, differing = 0;
  for (std::size_t i = 0; i < example.truth.pixels.size(); ++i) {
    if (!examples.counts(example.truth.pixels[i])) continue;
    ++labelled;
    const Label first = example.predictions.front().pixels[i];
    const bool same = std::ranges::all_of(
        example.predictions, [&](const LabelMap& map) { return map.pixels[i] == first; });
    differing += same ? 0 : 1;
  }
  return labelled == 0 ? std::numeric_limits<double>::quiet_NaN()
                       : static_cast<double>(differing) / static_cast<double>(labelled);
}

double accuracy(const Examples& examples, const Example& example, std::size_t mode) {
  std::int64_t labelled = 0, right = 0;
  for (std::size_t i = 0; i < example.truth.pixels.size(); ++i) {
    if (!examples.counts(example.truth.pixels[i])) continue;
    ++labelled;
    right += example.predictions[mode].pixels[i] == example.truth.pixels[i] ? 1 : 0;
  }
  return labelled == 0 ? std::numeric_limits<double>::quiet_NaN()
                       : static_cast<double>(right) / static_cast<double>(labelled);
}

Examples find_examples(const ReportData& data, const Tables& tables) {
  try {
    return examples_of(data, tables);
  } catch (const std::exception& error) {
    Examples none;
    none.why_not = error.what();
    return none;
  }
}

}  // namespace lockstep
