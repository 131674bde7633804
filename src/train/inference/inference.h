#pragma once
// Trained weights at work on images: on all devices, each image on one of them, while host threads
// read, prepare and write others.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/core/device.h"
#include "run/trained_model.h"
#include "train/inference/pixel_merge.h"
#include "train/inference/views.h"

namespace lockstep {

class InferenceDevice;
struct ViewPrediction;

struct ImagePrediction {
  LabelMap classes;                  // 1 x 1: of the whole image
  std::vector<float> probabilities;  // [pixels, classes]; may be empty
};

class Inference {
 public:
  /// `model` outlives it.
  Inference(const TrainedModel& model, const std::vector<Device>& devices,
            const TestTimeAugmentation& augmentation);
  ~Inference();

  /// The classes of the pixels of `image` at `size`, or its class. Without augmentation they are
  /// those of the largest logits, which an evaluation counts; with it, of the largest mean of the
  /// views' probabilities. Probabilities are there with augmentation or if asked for; the result
  /// does not depend on the device (rank). Safe from several threads.
  ImagePrediction predict(int device, const Image& image, Size size, bool probabilities);

  /// Calls work(index, device) for all indices below `count`, begun in their order, on several host
  /// threads per device. The first exception ends it and is thrown; `stop` (may be null) ends it
  /// after the images at work.
  void for_each(std::int64_t count, const std::function<void(std::int64_t, int)>& work,
                const std::atomic<bool>* stop = nullptr);

 private:
  ImagePrediction merge_pixels(const std::vector<View>& views,
                               const std::vector<ViewPrediction>& predictions, Size size) const;
  ImagePrediction merge_images(const std::vector<ViewPrediction>& predictions) const;
  int workers() const;

  Task task_;
  Views views_;
  bool on_gpus_;
  std::vector<std::unique_ptr<InferenceDevice>> devices_;
};

}  // namespace lockstep
