#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "train/diagnosis/diagnosis.h"

namespace lockstep {
namespace {

struct Judgement {
  SyncVerdict verdict;
  std::string reason;
};

bool is_unfit(const ImagesDiagnosis& images) { return images.running_loss > kUnfit * images.loss; }

/// The layer with the largest share of its variance between images. Where an image has one value
/// per channel all of it lies there, and a norm by image would leave nothing: such layers do not
/// count. Null: there is no other.
const LayerNoise* most_mixed(const ImagesDiagnosis& images) {
  const LayerNoise* most = nullptr;
  for (const LayerNoise& layer : images.layers) {
    if (layer.values <= images.together) continue;
    if (most == nullptr || layer.missed > most->missed) most = &layer;
  }
  return most;
}

double share_between(const LayerNoise& layer, const ImagesDiagnosis& images) {
  return layer.missed * static_cast<double>(images.together);
}

std::string describe_mixture(const LayerNoise& layer, double share) {
  std::string text =
      fmt::format("{:.0f} % of the variance at {} lies between images", 100 * share, layer.layer);
  if (layer.bimodality >= kKinds) text += ", which fall into kinds";
  return text;
}

/// By what factor an image's variance is off that of all images: the geometric mean over channels,
/// images and the layers that most_mixed() takes.
double variance_apart(const ImagesDiagnosis& images) {
  double sum = 0;
  int layers = 0;
  for (const LayerNoise& layer : images.layers) {
    if (layer.values <= images.together) continue;
    sum += layer.log_var_ratio;
    ++layers;
  }
  return layers == 0 ? 1 : std::exp(sum / layers);
}

/// Of one image per device, whose statistics miss much, with weights that are not pretrained.
Judgement judged_alone(const ImagesDiagnosis& images, const std::string& missed) {
  const double apart = variance_apart(images);
  const std::string factor = fmt::format(
      "an image's variance is off that of all by a factor of {:.1f}, the mean of all layers",
      apart);
  if (apart >= kApart) {
    return {SyncVerdict::kByImage,
            factor +
                ": light or contrast differ from image to image; compare instance, and local "
                "evaluated by own statistics, with sync"};
  }
  if (apart <= kAlike) {
    return {SyncVerdict::kSynchronize,
            fmt::format("it misses {}, which an evaluation by running statistics has; {}: images "
                        "are alike, and statistics of many fit them",
                        missed, factor)};
  }
  return {
      SyncVerdict::kCannotTell,
      fmt::format("it misses {}, which an evaluation by running statistics has; {}: synchronize "
                  "or normalise by image; compare both",
                  missed, factor)};
}

Judgement judged(const ImagesDiagnosis& images, std::int64_t global_batch, WeightsOrigin origin) {
  if (images.impossible) {
    return {SyncVerdict::kSynchronize,
            fmt::format("{} has one value per channel, which has no variance: training is an error",
                        images.smallest().layer)};
  }
  if (images.stored_loss && images.together == 1 && *images.stored_loss > kUnfit * images.loss) {
    return {SyncVerdict::kByImage,
            fmt::format("these weights have the loss {:.2f} by each image's own statistics and "
                        "{:.2f} by their running ones: evaluate by own (bn.eval_stats)",
                        images.loss, *images.stored_loss)};
  }
  const LayerNoise* const mixed = most_mixed(images);
  const double between = mixed == nullptr ? 0 : share_between(*mixed, images);
  if (origin != WeightsOrigin::kPretrained && between >= kMixture) {
    return {SyncVerdict::kByImage,
            fmt::format("{}: statistics of many fit none of them; compare instance, and local "
                        "evaluated by own statistics, with sync",
                        describe_mixture(*mixed, between))};
  }
  if (global_batch > 0 && images.together >= global_batch) {
    return {SyncVerdict::kNotNeeded,
            fmt::format("the global batch has no more than {} images", global_batch)};
  }
  const LayerNoise& worst = images.worst();
  const std::string missed =
      fmt::format("{:.1f} % of the variance at {}", 100 * worst.missed, worst.layer);
  if (worst.missed < (images.together == 1 ? kMissedAlone : kMissed)) {
    return {SyncVerdict::kNotNeeded,
            fmt::format("{} {}, and less at other layers",
                        images.together == 1 ? "it misses" : "they miss", missed)};
  }
  if (images.together == 1 && origin == WeightsOrigin::kPretrained) {
    return {SyncVerdict::kSynchronize,
            fmt::format("it misses {}, which an evaluation by running statistics has", missed)};
  }
  if (images.together == 1) return judged_alone(images, missed);
  if (is_unfit(images)) {
    return {SyncVerdict::kSynchronize,
            fmt::format("they miss {}, and the running statistics do not fit the weights: loss "
                        "{:.2f} in evaluation, {:.2f} in training",
                        missed, images.running_loss, images.loss)};
  }
  return {SyncVerdict::kCannotTell,
          fmt::format("they miss {}: noise, which may harm or regularise", missed)};
}

}  // namespace

void judge(ImagesDiagnosis& images, std::int64_t global_batch, WeightsOrigin origin) {
  Judgement judgement = judged(images, global_batch, origin);
  images.verdict = judgement.verdict;
  images.reason = std::move(judgement.reason);
}

}  // namespace lockstep
