#pragma once
// Images in files, predictions of a trained network into a folder.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "run/trained_model.h"
#include "train/inference/image_files.h"
#include "train/inference/pixel_merge.h"
#include "train/inference/views.h"

namespace lockstep {

struct PredictRequest {
  std::filesystem::path target;        // a run folder (its last checkpoint) or a checkpoint file
  std::filesystem::path config;        // empty: the run's config.toml
  std::vector<std::string> overrides;  // -s
  std::string devices;                 // empty: the default
  const Tables* tables = &builtin_tables();
  std::vector<std::filesystem::path> images;  // files and folders
  std::filesystem::path output;               // a folder, which need not be there
  TestTimeAugmentation augmentation = {};
  bool overlay = true;         // segmentation: also the classes' colours over the image
  bool probabilities = false;  // also a file of these
  bool submission = false;     // maps as the server of the layout's benchmark takes them
  bool force = false;          // write over what is there
  const std::atomic<bool>* stop = nullptr;  // ends after the images at work, or windows of one
  /// Called after each image, by several threads, one at a time; may be empty.
  std::function<void(std::int64_t done, std::int64_t all)> progress = nullptr;
};

struct PredictedImage {
  std::filesystem::path image;
  PredictionFiles files;        // that were written
  Size size = {};               // of the image
  std::vector<ClassScore> top;  // classification: the five likeliest, likeliest first
  bool done = false;
  std::string error;  // why there is no prediction; empty: there is, or none was tried
  int exit_code = 0;  // what a program ends with that has failed so
};

struct PredictReport {
  std::filesystem::path checkpoint;
  std::int64_t iteration = -1;  // of the checkpoint; -1: unknown
  std::string devices;
  Task task = Task::kSegmentation;
  std::vector<std::string> classes;
  std::filesystem::path table;         // classification: predictions.csv
  std::vector<PredictedImage> images;  // in the order of the request
  std::vector<std::int64_t> counts;    // [class] pixels, or images
  std::int64_t done = 0, failed = 0;   // images
  double seconds = 0;                  // without reading the weights
  std::vector<std::string> warnings;
};

/// [class] the values of a map that the server of the layout's benchmark takes
/// (DataLayout::file_values). Throws ConfigError for a layout that has none of its own.
std::vector<Label> submission_values(const DataOptions& data);

/// Writes STEM.png, a palette PNG of classes, or STEM.tif of a TIFF, and STEM_overlay.png for
/// segmentation networks, predictions.csv for classifiers, and gray PNGs alone for a submission; if
/// asked for also STEM.npy, float32 [classes, height, width] or [classes]. Images in windows are
/// read and written by rows. All have the size of the image,
/// whatever data.resize and data.val_resize make of it: logits are interpolated (pixel_merge.h). An
/// image that cannot be read, or that the network fails on, is told of in the report, and the
/// others are predicted. Throws ConfigError, DataError; Error where a file cannot be written.
PredictReport predict_images(const PredictRequest& request);

}  // namespace lockstep
