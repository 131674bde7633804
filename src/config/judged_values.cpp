#include "config/judged_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <variant>

#include "config/config_schema.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Judged = std::vector<JudgedValue>;

// Where the rates of published trainings stop.
constexpr double kUnusualRate = 5, kUnusualAdaptiveRate = 0.1;
// Factors of images; larger ones are percent.
constexpr float kUnusualScale = 10;
constexpr float kUnusualDeviations = 3;
// Of the largest class weight over the smallest: inverse frequencies hardly differ by more.
constexpr float kUnusualRatio = 1e4F;

void refuse(Judged& judged, std::string key, std::string message, std::string remedy) {
  judged.push_back({std::move(key), true, std::move(message), std::move(remedy)});
}
void warn(Judged& judged, std::string key, std::string message, std::string remedy) {
  judged.push_back({std::move(key), false, std::move(message), std::move(remedy)});
}

// --- data ---

void judge_normalization(const PixelOptions& data, Judged& judged) {
  const bool of_bytes = data.pixels.value_or(PixelType::kUint8) == PixelType::kUint8;
  if (!of_bytes || data.channels != 3 || data.normalize || data.mean.empty()) return;
  const auto judge = [&](const char* key, const std::vector<float>& values) {
    if (std::ranges::all_of(values, [](float value) { return value <= 1; })) return;
    std::vector<float> divided = values;
    for (float& value : divided) value = std::round(value / 255 * 1000) / 1000;
    refuse(judged, key,
           fmt::format("{} = [{}] is of images in 0..255, but here it is of RGB in 0..1", key,
                       fmt::join(values, ", ")),
           fmt::format("divide by 255: {} = [{}]", name_of(key), fmt::join(divided, ", ")));
  };
  judge("data.mean", data.mean);
  judge("data.std", data.std);
  if (*std::ranges::min_element(data.mean) < 0) {
    warn(judged, "data.mean",
         fmt::format("data.mean = [{}] is below all that RGB in 0..1 can be",
                     fmt::join(data.mean, ", ")),
         "lockstep data check prints the mean of your images");
  }
}

void judge_classes(const Config& config, Judged& judged) {
  const DataOptions& data = config.data;
  const bool ignores = data.ignore_index < data.num_classes;
  if (data.num_classes == 2 && ignores) {
    refuse(judged, "data.ignore_index",
           fmt::format("data.ignore_index = {} leaves one class of data.num_classes = 2: every "
                       "probability of it is 1 and the loss 0, and nothing is learnt",
                       data.ignore_index),
           "the background is a class, too: leave data.ignore_index out");
  }
  if (data.num_classes != 1) return;
  const bool segments =
      std::none_of(data.layouts->begin(), data.layouts->end(), [&](const DataLayout& layout) {
        return layout.name == data.layout && layout.task == Task::kClassification;
      });
  refuse(judged, "data.num_classes",
         "data.num_classes = 1: of one class every probability is 1 and the loss 0, and nothing is "
         "learnt",
         segments ? "the background is a class, too: set data.num_classes = 2, and for masks of 0 "
                    "and 255 data.mask_values = \"binary\""
                  : "give images that are not of the class a class of their own");
}

void judge_factors(const std::string& key, const std::array<float, 2>& factors, const char* of,
                   Judged& judged) {
  if (factors[1] <= kUnusualScale) return;
  judged.push_back({key, factors[0] > kUnusualScale,
                    fmt::format("{} = [{}, {}] are factors of {}", key, factors[0], factors[1], of),
                    "write 50 % as 0.5"});
}

void judge_augmentation(const DataOptions& data, Judged& judged) {
  const AugmentOptions augment = data.augment.value_or(AugmentOptions{});
  judge_factors("data.augment.scale", {augment.scale_lo, augment.scale_hi}, "the image's size",
                judged);
  judge_factors("data.augment.gain", augment.gain, "an image's values", judged);
  for (const auto& [key, value] :
       {std::pair{"data.augment.shift", augment.shift}, {"data.augment.noise", augment.noise}}) {
    if (value <= kUnusualDeviations) continue;
    warn(judged, key, fmt::format("{} = {} is in standard deviations of the images", key, value),
         "0.1 is usual");
  }
  if (data.val_crop && data.val_resize &&
      std::min(data.val_crop->height, data.val_crop->width) > *data.val_resize) {
    warn(judged, "data.val_crop",
         fmt::format("data.val_crop = [{}, {}] cuts nothing off images whose shorter side is {}",
                     data.val_crop->height, data.val_crop->width, *data.val_resize),
         "set data.val_resize to more than the crop");
  }
}

// --- losses ---

void judge_class_weights(const std::string& key, const ClassWeights& weights, Judged& judged) {
  if (weights.empty() || weights.balanced) return;
  const float most = *std::ranges::max_element(weights);
  if (most == 0) {
    refuse(judged, key, fmt::format("{} is 0 for every class: nothing is learnt", key),
           "leave it out, or give the classes that count a weight");
    return;
  }
  float least = most;
  for (const float weight : weights) least = weight > 0 ? std::min(least, weight) : least;
  if (most / least <= kUnusualRatio) return;
  warn(judged, key,
       fmt::format("{} has weights from {:g} to {:g}: counts or frequencies are no weights, which "
                   "are larger for rarer classes",
                   key, least, most),
       "lockstep data check prints weights to paste");
}

void judge_losses(const Config& config, Judged& judged) {
  for (std::size_t i = 0; i < config.losses.size(); ++i) {
    const std::string section = section_in_list("loss", i, config.losses.size());
    with_class_weights(config.losses[i], [&](const char* name, const ClassWeights& weights) {
      judge_class_weights(section + "." + name, weights, judged);
    });
  }
}

// --- norm and optimizer ---

void judge_norm(const BatchNormConfig& bn, Judged& judged) {
  if (!bn.has_running_statistics() || !bn.momentum) return;
  if (*bn.momentum > 0.5) {
    warn(judged, "bn.momentum",
         fmt::format("bn.momentum = {} is the weight of the new value and nearly forgets the old "
                     "one",
                     *bn.momentum),
         "if it comes from Keras, set bn.momentum_convention = \"keras\"");
  }
  if (*bn.momentum == 0) {
    warn(judged, "bn.momentum",
         "bn.momentum = 0 leaves the running statistics what they were at the start",
         "set bn.momentum = 0.1, or bn.mode = \"frozen\" if that is meant");
  }
}

bool is_adaptive(const Optimizer& optimizer) { return !std::holds_alternative<Sgd>(optimizer); }

void judge_rate(const Config& config, double rate, const std::string& says, Judged& judged) {
  const bool adaptive = is_adaptive(config.optim.optimizer);
  const std::string kind = optimizer_name(config.optim.optimizer);
  const char* usual = adaptive ? "0.001 is usual" : "0.01 to 0.1 is usual";
  if (rate == 0) warn(judged, "optim.lr", says + ": nothing is learnt", usual);
  if (rate > (adaptive ? kUnusualAdaptiveRate : kUnusualRate))
    warn(judged, "optim.lr", fmt::format("{} is much for {}", says, kind), usual);
}

// Where a step takes more off a weight than twice what there is of it, weights grow without end.
void judge_decay(const Config& config, double rate, Judged& judged) {
  std::visit(
      [&](const auto& optimizer) {
        const double taken = rate * static_cast<double>(optimizer.weight_decay);
        if (taken < 1) return;
        warn(judged, "optim.weight_decay",
             fmt::format("optim.weight_decay = {:g} times the rate {:g} takes {:g} times every "
                         "weight off it at a step",
                         optimizer.weight_decay, rate, taken),
             "0.0001 to 0.05 is usual");
      },
      config.optim.optimizer);
}

void judge_momentum(const Optimizer& optimizer, Judged& judged) {
  std::visit(
      [&](const auto& chosen) {
        if constexpr (requires { chosen.beta1; }) {
          if (chosen.beta1 <= chosen.beta2) return;
          warn(judged, "optim.beta1",
               fmt::format("optim.beta1 = {:g} is above optim.beta2 = {:g}", chosen.beta1,
                           chosen.beta2),
               "0.9 and 0.999 are usual");
        } else if constexpr (requires { chosen.momentum; }) {
          if (chosen.momentum < 0.9995F) return;
          warn(
              judged, "optim.momentum",
              fmt::format("optim.momentum = {:g} makes a step {:.0f} times as long as its gradient",
                          chosen.momentum, 1 / (1 - static_cast<double>(chosen.momentum))),
              "0.9 is usual");
        }
      },
      optimizer);
}

// --- the run ---

void judge_warmup(const Config& config, std::int64_t steps, Judged& judged) {
  const std::int64_t warmup = config.schedule.warmup_iters;
  if (warmup == 0 || warmup < steps) return;
  double most = 0;
  constexpr std::int64_t kLookedAt = 1000;
  for (std::int64_t i = 0; i < std::min(steps, kLookedAt); ++i) {
    const std::int64_t step = steps <= kLookedAt ? i : i * (steps - 1) / (kLookedAt - 1);
    most = std::max(most, learning_rate(config.schedule, 1, step, steps));
  }
  warn(judged, "schedule.warmup_iters",
       fmt::format("schedule.warmup_iters = {}, but the run has {} steps: the learning rate is at "
                   "most {:.0f} % of optim.lr",
                   warmup, steps, 100 * most),
       "set fewer, or train longer");
}

void judge_schedule(const Config& config, std::int64_t steps, double rate, Judged& judged) {
  const ScheduleOptions& schedule = config.schedule;
  const std::vector<double>& milestones = schedule.milestones;
  const bool falls = milestones.empty() || std::ranges::any_of(milestones, [&](double milestone) {
                       return milestone < 1 || milestone < static_cast<double>(steps);
                     });
  if (schedule.type == ScheduleType::kStep && !falls) {
    warn(judged, "schedule.milestones",
         fmt::format("schedule.milestones = [{}] are beyond the {} steps of the run: the learning "
                     "rate never falls",
                     fmt::join(milestones, ", "), steps),
         "set smaller ones, or shares of the run such as 0.67");
  }
  const bool ends = schedule.type == ScheduleType::kPoly || schedule.type == ScheduleType::kCosine;
  if (ends && static_cast<float>(schedule.min_lr) > static_cast<float>(rate)) {
    warn(judged, "schedule.min_lr",
         fmt::format("schedule.min_lr = {:g}, where the learning rate ends, is above optim.lr: "
                     "the learning rate rises from {:g}",
                     schedule.min_lr, rate),
         "set a smaller one");
  }
}

void judge_average(const Config& config, std::int64_t steps, Judged& judged) {
  const double decay = config.ema.decay;
  if (decay == 0 || (1 - decay) * static_cast<double>(steps) >= 1) return;
  warn(
      judged, "ema.decay",
      fmt::format("ema.decay = {:g} averages over {:.0f} steps, but the run has {}: the average is "
                  "mostly of the first weights",
                  decay, 1 / (1 - decay), steps),
      "set a smaller one, or train longer");
}

}  // namespace

std::vector<JudgedValue> judge_values(const Config& config) {
  Judged judged;
  judge_normalization(config.data, judged);
  judge_classes(config, judged);
  judge_augmentation(config.data, judged);
  judge_losses(config, judged);
  judge_norm(config.bn, judged);
  judge_momentum(config.optim.optimizer, judged);
  if (config.optim.lr_reference_batch == 0) {
    const double rate = config.base_learning_rate(1);
    judge_rate(config, rate, fmt::format("optim.lr = {:g}", rate), judged);
    judge_decay(config, rate, judged);
  }
  return judged;
}

std::vector<JudgedValue> judge_run(const Config& config, std::int64_t steps, int devices) {
  Judged judged;
  const double rate = config.base_learning_rate(devices);
  if (config.optim.lr_reference_batch != 0) {
    judge_rate(config, rate,
               fmt::format("optim.lr is scaled to {:g} (optim.lr_reference_batch)", rate), judged);
    judge_decay(config, rate, judged);
  }
  judge_warmup(config, steps, judged);
  judge_schedule(config, steps, rate, judged);
  judge_average(config, steps, judged);
  return judged;
}

std::string to_string(const JudgedValue& value) { return value.message + "; " + value.remedy; }

void throw_if_refused(const std::vector<JudgedValue>& values) {
  std::string all;
  for (const JudgedValue& value : values) {
    if (value.refused) all += (all.empty() ? "" : "\n") + to_string(value);
  }
  if (!all.empty()) throw ConfigError(all);
}

}  // namespace lockstep
