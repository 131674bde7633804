#pragma once
// Which norm a training needs and how to evaluate it, asked before it: a few images go forward
// through the network, normalised by statistics of one, two, four ... of them at a time, and
// through the same network as an evaluation after such a training would see them. Nothing is
// trained.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/diagnosis/statistics_noise.h"

namespace lockstep {

struct DiagnosisRequest {
  Config config;
  /// Loaded as far as its names fit; empty: as a training begins.
  std::filesystem::path weights = {};
  std::string device = {};  // one; empty: the first of the default
  /// Empty: 1, 2, 4 and 8, but for those that there are too few images for.
  std::vector<std::int64_t> images_per_device = {};
  std::int64_t images = 0;  // to look at; 0: 64, or twice the most of images_per_device
};

/// What is said about a number of images per device.
enum class SyncVerdict : std::uint8_t {
  kSynchronize,
  kNotNeeded,
  kByImage,  // a norm by image, or local evaluated by each image's own statistics
  kCannotTell,
};
constexpr auto names_of(SyncVerdict) {
  return std::to_array<Named<SyncVerdict>>({{"synchronize", SyncVerdict::kSynchronize},
                                            {"not needed", SyncVerdict::kNotNeeded},
                                            {"by image", SyncVerdict::kByImage},
                                            {"cannot tell", SyncVerdict::kCannotTell}});
}

/// Where the weights come from that a diagnosis runs.
enum class WeightsOrigin : std::uint8_t {
  kInitial,
  kPretrained,  // model.backbone_weights: of another training, by other statistics
  kTrained,     // DiagnosisRequest::weights
};

/// Statistics of so many images, as training by them would have them.
struct ImagesDiagnosis {
  std::int64_t together = 0;  // images
  std::vector<LayerNoise> layers = {};
  /// Whether a layer has one value per channel: then there is no training, and nothing below.
  bool impossible = false;
  double loss = 0;          // as training sees it: normalised by these statistics
  double running_loss = 0;  // as evaluation sees it: by the running ones that they leave behind
  /// By the running statistics that trained weights came with; none of other weights.
  std::optional<double> stored_loss = {};
  /// Root mean square of the logits by these statistics minus those by all images', over the
  /// standard deviation of the latter.
  double logit_noise = 0;
  /// The same of the logits by these statistics minus those by the running ones.
  double logit_disparity = 0;
  double changed = 0;  // share of positions at which the running ones change the class
  SyncVerdict verdict = SyncVerdict::kCannotTell;
  std::string reason = {};

  double disparity() const { return loss - running_loss; }  // as StatisticsScores::loss
  /// That misses most. REQUIRES: there are layers.
  const LayerNoise& worst() const;
  /// With the fewest values. REQUIRES: there are layers.
  const LayerNoise& smallest() const;
};

struct Diagnosis {
  Size size = {};                 // of images
  std::int64_t images = 0;        // looked at
  std::int64_t global_batch = 0;  // of the configuration; 0: it depends on the devices
  WeightsOrigin origin = WeightsOrigin::kInitial;
  std::string weights = {};                 // where they come from, in words
  double loss = 0;                          // by statistics of all images
  std::vector<std::int64_t> left_out = {};  // images per device that nobody asked for by number
  /// In the order that was asked for. Layers are empty where no BatchNorm takes statistics in
  /// training: nothing is shared then.
  std::vector<ImagesDiagnosis> by_images = {};
  double seconds = 0;

  bool shares_statistics() const { return !by_images.empty() && !by_images.front().layers.empty(); }
};

/// Throws ConfigError where the training set has too few images for a number per device, or images
/// of several sizes, DataError as a training, and ReplicaError.
Diagnosis diagnose(const DiagnosisRequest& request);

/// The layers whose statistics differ most from device to device, at the first number of images:
/// by LayerNoise::ratio, at most `count` of them, for BatchNormOptions::sync_layers. The largest
/// first; of equal ones the earlier.
std::vector<std::string> layers_apart(const Diagnosis& diagnosis, std::size_t count);

/// The share of the variance that statistics may miss before it can matter: their mean is then off
/// by a quarter of a standard deviation. Two thirds of the least at which a comparison of
/// docs/notes/experiments.md showed a difference; the share itself is off by a fifth by chance.
inline constexpr double kMissed = 1.0 / 16;

/// The same where one image is alone on a device. Digits of 8x8, of which every layer misses 5 to
/// 6 %, gained 12 points by synchronizing.
inline constexpr double kMissedAlone = 1.0 / 32;

/// How many times the loss of training the loss of evaluation may be before the running statistics
/// of such training do not fit the weights. With initial weights the two are nearly the same; with
/// pretrained ones an evaluation may be far off.
inline constexpr double kUnfit = 1.5;

/// From this share of a layer's variance between images on, statistics of many fit none of them:
/// more lies between images than within them. Below it sets with 10 and 36 % were better normalised
/// by image, and some with 11 to 32 % by common statistics: it decides nothing there.
inline constexpr double kMixture = 1.0 / 2;

/// By what factor an image's variance is off that of all images, where only one image is on a
/// device: up to kAlike statistics of many fit the images, from kApart on they do not. Chosen with
/// eight sets in view (docs/do/diagnose.md).
inline constexpr double kAlike = 2.0;
inline constexpr double kApart = 2.5;

/// From this bimodality on images are said to fall into kinds.
inline constexpr double kKinds = 0.7;

/// The rule (docs/do/diagnose.md has how often it was right): fills in verdict and reason. Trained
/// weights that do better by each image's own statistics than by their running ones are to be
/// evaluated by these. Where kMixture of the variance lies between images, normalise by image,
/// however many there are on a device, unless the weights are pretrained by another norm.
/// Statistics that miss less than kMissed in every layer are good enough, those of one image less
/// than kMissedAlone. Where these miss more, an evaluation by running ones does not see what
/// training saw: synchronize, if the weights are pretrained or images are kAlike, and normalise by
/// image where they are kApart; between them nobody can tell. Those of several images depend on
/// chance neighbours: noise, which harms or regularises, and nobody can tell which, unless
/// evaluation is already worse than training by kUnfit. `global_batch`: 0: unknown.
void judge(ImagesDiagnosis& images, std::int64_t global_batch,
           WeightsOrigin origin = WeightsOrigin::kInitial);

}  // namespace lockstep
