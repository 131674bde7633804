#include <fmt/format.h>

#include <utility>

#include "train/diagnosis/diagnosis.h"

namespace lockstep {
namespace {

struct Judgement {
  SyncVerdict verdict;
  std::string reason;
};

Judgement judged(const ImagesDiagnosis& images, std::int64_t global_batch) {
  if (images.impossible) {
    return {SyncVerdict::kSynchronize,
            fmt::format("{} has one value per channel, which has no variance: training is an error",
                        images.smallest().layer)};
  }
  if (global_batch > 0 && images.together >= global_batch) {
    return {SyncVerdict::kNotNeeded,
            fmt::format("the global batch has no more than {} images", global_batch)};
  }
  const LayerNoise& worst = images.worst();
  const std::string missed =
      fmt::format("{:.1f} % of the variance at {}", 100 * worst.missed, worst.layer);
  if (worst.missed < kMissed) {
    return {SyncVerdict::kNotNeeded, fmt::format("they miss {}, and less at other layers", missed)};
  }
  if (images.together == 1) {
    return {SyncVerdict::kSynchronize,
            fmt::format("it misses {}, and weights come to rely on an image's own", missed)};
  }
  if (images.running_loss > kUnfit * images.loss) {
    return {SyncVerdict::kSynchronize,
            fmt::format("they miss {}, and the running statistics do not fit the weights: loss "
                        "{:.2f} in evaluation, {:.2f} in training",
                        missed, images.running_loss, images.loss)};
  }
  return {SyncVerdict::kCannotTell,
          fmt::format("they miss {}: noise, which may harm or regularise", missed)};
}

}  // namespace

void judge(ImagesDiagnosis& images, std::int64_t global_batch) {
  Judgement judgement = judged(images, global_batch);
  images.verdict = judgement.verdict;
  images.reason = std::move(judgement.reason);
}

}  // namespace lockstep
