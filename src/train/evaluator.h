#pragma once
// Evaluation of the validation split under chosen BatchNorm statistics. The replicas' training
// statistics are put aside, and back bit for bit: evaluating never changes a training run.

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/json.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/confusion_matrix.h"
#include "run/summary.h"
#include "train/inference/views.h"

namespace lockstep {

/// A validation image as the network sees it (resized, cropped, its edges padded), what is true and
/// what the network says.
struct ValidationExample {
  std::string name;
  Image image;
  LabelMap truth, prediction;
};

/// The images from left to right with a white gap between them. REQUIRES: one height.
Image side_by_side(const std::vector<Image>& images);

/// What one image of a segmentation came to.
struct ImageScores {
  std::string name;
  ConfusionMetrics metrics;
};

/// Used by the trainer's thread, between steps. `replicas` outlives it.
class Evaluator {
 public:
  /// Opens the validation split. Throws DataError, and ConfigError where several images are to be
  /// normalised together and they are of several sizes.
  Evaluator(const Config& config, DataParallel& replicas);
  ~Evaluator();

  /// Statistics as `stats` says; kPrecise runs bn.precise_iters training batches forward (from the
  /// start of epoch 0, with the present weights), merges the layers' moments over devices and
  /// batches in double, and takes the unbiased variance. kBatch: at least bn.eval_images together,
  /// a random choice that is the same in every evaluation, since neighbours may be frames of one
  /// film; as many as in training on these replicas where that says nothing.
  /// `with_examples`: then also gives `examples`, of a segmentation four images spread over the
  /// split, for the price of their forward passes on rank 0.
  Evaluation evaluate(EvalStats stats, bool with_examples = false);
  /// Every image of a segmentation's split on its own, in the split's order: the scores whose
  /// confusion matrices add up to the one of `evaluate`, for one more pass, in one process. Throws
  /// ConfigError for images that have no scores of their own: of a classification, and those that
  /// kBatch normalises together.
  std::vector<ImageScores> evaluate_images(EvalStats stats);
  /// The images at these places of the split. As evaluate_images.
  std::vector<ValidationExample> predict(EvalStats stats, const std::vector<std::int64_t>& indices);
  /// The examples of the last evaluation, if it was asked for them.
  const std::vector<ValidationExample>& examples() const;
  const Dataset& dataset() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // with replicas that load samples
};

/// That cropped windows overlap by less than the network looks around a pixel, so that they give
/// another map than one piece, and what to do; nullopt: they do not.
std::optional<std::string> window_warning(const Config& config, EvalStats stats,
                                          const Network& network);

struct EvalRequest {
  std::filesystem::path target;        // a run folder (its last checkpoint) or a checkpoint file
  std::filesystem::path config;        // empty: the run's config.toml
  std::vector<std::string> overrides;  // -s
  std::string devices;                 // empty: the default
  const Tables* tables = &builtin_tables();
  std::string split = {};  // that data.val shall name; empty: as it is
  TestTimeAugmentation augmentation = {};
  std::reference_wrapper<World> world = World::alone();  // the processes that evaluate together
  bool per_image = false;                                // one process, without augmentation
};

struct EvalReport {
  std::filesystem::path checkpoint;
  std::int64_t iteration = -1;  // of the checkpoint; -1: unknown
  std::string devices;
  std::vector<std::string> classes;
  Evaluation evaluation;
  std::vector<std::string> warnings;
  std::string split = {};  // as it was asked for
  TestTimeAugmentation augmentation = {};
  std::vector<ImageScores> images = {};       // where they were asked for, in the split's order
  std::vector<ValidationExample> worst = {};  // of those the ten of lowest mIoU, the lowest first
  std::vector<Color> colors = {};             // of the classes
};

/// The places of images by rising mIoU; those where it is undefined are left out.
std::vector<std::int64_t> worst_first(const std::vector<ImageScores>& images);

/// Loads a checkpoint and evaluates it. With augmentation by fp32 networks, one for each scale and
/// device (inference/evaluate_augmented.h), and not under bn.eval_stats = "precise". Every process
/// of the world calls it, several without augmentation, and has the report; `target` is process
/// 0's. Throws ConfigError, DataError, ReplicaError.
EvalReport evaluate_checkpoint(const EvalRequest& request);

/// "flip" and "scales".
Json to_json(const TestTimeAugmentation& augmentation);

/// The report as one JSON object: "checkpoint", "iteration", "devices", "classes", then as an
/// `eval` event; also "split" where one was asked for, and "tta" where images were augmented:
/// "flip" and "scales", and "per_image" where it was: "image", and of each "mIoU", "aAcc" and
/// "IoU.CLASS". Percent are not rounded, null means undefined.
std::string to_json(const EvalReport& report);

}  // namespace lockstep
