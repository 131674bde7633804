#pragma once
// Trained weights at work on images: on all devices, each image on one of them, while host threads
// read, prepare and write others.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "io/row_source.h"
#include "lockstep/core/device.h"
#include "lockstep/data/windows.h"
#include "run/trained_model.h"
#include "train/inference/pixel_merge.h"
#include "train/inference/views.h"

namespace lockstep {

class InferenceDevice;
class WindowGrid;
class WindowMerge;
struct ViewPrediction;

struct InferenceOptions {
  TestTimeAugmentation augmentation = {};
  WindowOptions windows = {};     // of segmentation
  std::int64_t least_pixels = 0;  // of an image that comes in windows; smaller ones in one piece
  bool compares_windows = false;  // ImagePrediction::mismatch
};

struct ImagePrediction {
  LabelMap classes;                  // 1 x 1: of the whole image
  std::vector<float> probabilities;  // [pixels, classes]; may be empty
  TileMismatch mismatch = {};
};

/// Rows of an image, and what is said of them.
struct PredictedRows {
  std::span<const Label> classes;
  std::span<const float> probabilities;  // [pixels, classes]; may be empty
  const Image& band;                     // rows of the image as its source has them, which
  int offset = 0, count = 0;             // have these at `offset`
};

/// What is predicted in windows.
struct WindowedImage {
  RowSource& rows;
  std::function<void(Image&)> prepare = nullptr;  // a window for the network; null: it is that
  const std::atomic<bool>* stop = nullptr;        // ends it after the windows side by side at work
};

class Inference {
 public:
  /// `model` outlives it.
  Inference(const TrainedModel& model, const std::vector<Device>& devices,
            const InferenceOptions& options);
  ~Inference();

  /// The classes of the pixels of `image` at `size`, or its class. Without augmentation they are
  /// those of the largest logits, which an evaluation counts; with it, of the largest mean of the
  /// views' probabilities. In windows of the image, which go to all devices, they are those of the
  /// largest probability that the windows come to. Probabilities are there with augmentation or if
  /// asked for; the result does not depend on the device (rank). Safe from several threads.
  ImagePrediction predict(int device, const Image& image, Size size, bool probabilities);

  /// Whether predict would cut an image of this size.
  bool in_windows(Size image) const;
  /// The classes and probabilities that predict gives in windows, with the memory of few rows of
  /// the image: calls `use` from the top, for rows that no later window changes, by one thread at a
  /// time. `prepare` is called by several. False: it was stopped.
  bool predict_rows(int device, const WindowedImage& image,
                    const std::function<void(const PredictedRows&)>& use,
                    TileMismatch* mismatch = nullptr);

  /// Calls work(index, device) for all indices below `count`, begun in their order, on several host
  /// threads per device. The first exception ends it and is thrown; `stop` (may be null) ends it
  /// after the images at work.
  void for_each(std::int64_t count, const std::function<void(std::int64_t, int)>& work,
                const std::atomic<bool>* stop = nullptr);

 private:
  ImagePrediction predict_piece(int device, const Image& image, Size size, bool probabilities);
  ImagePrediction predict_windows(int device, const Image& image, bool probabilities);
  void predict_row(int device, int row, const WindowGrid& grid, const WindowedImage& image,
                   const RowBand& band, WindowMerge& merge);
  ImagePrediction merge_pixels(const std::vector<View>& views,
                               const std::vector<ViewPrediction>& predictions, Size size) const;
  ImagePrediction merge_images(const std::vector<ViewPrediction>& predictions) const;
  int workers() const;

  Task task_;
  std::int64_t classes_;
  InferenceOptions options_;
  Views views_;
  bool on_gpus_;
  std::vector<std::unique_ptr<InferenceDevice>> devices_;
};

}  // namespace lockstep
