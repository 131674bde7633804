#include "train/inference/inference.h"

#include <algorithm>

#include "core/for_each_index.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

Size size_of(const Shape& shape) {
  return {static_cast<int>(shape.height()), static_cast<int>(shape.width())};
}

LogitMap map_of(const View& view, const Answer& answer, std::int64_t sample) {
  return {answer.logits.data() + sample * answer.shape.with_batch(1).elements(),
          size_of(answer.shape), view.size, answer.shape.channels(), sample == 1};
}

/// The classes of the image, without what pads it.
LabelMap cropped(const std::vector<std::int32_t>& classes, Size stored, Size size) {
  LabelMap map{size.height, size.width, {}};
  map.pixels.reserve(static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width));
  for (int y = 0; y < size.height; ++y) {
    const auto row = classes.begin() + static_cast<std::ptrdiff_t>(y) * stored.width;
    for (int x = 0; x < size.width; ++x) map.pixels.push_back(static_cast<Label>(row[x]));
  }
  return map;
}

void divide(std::vector<float>& values, std::int64_t divisor) {
  for (float& value : values) value /= static_cast<float>(divisor);
}

}  // namespace

Inference::Inference(const TrainedModel& model, const std::vector<Device>& devices,
                     const TestTimeAugmentation& augmentation)
    : task_(model.architecture.task),
      views_(model.config.data, model.architecture.size_divisor, augmentation),
      on_gpus_(devices.front().kind == DeviceKind::kCuda) {
  const int threads = threads_per_replica(static_cast<int>(devices.size()));
  for (const Device& device : devices) {
    devices_.push_back(
        std::make_unique<InferenceDevice>(model, device, threads, augmentation.scales.size()));
  }
}

ImageOutcome Inference::predict(int device, const Image& image, Size size, bool probabilities) {
  const std::vector<View> views = views_.of(image);
  const bool segments = task_ == Task::kSegmentation;
  const bool merges = probabilities || views_.augmentation().active();
  const bool logits = !segments || merges || size != views.front().size;
  const std::vector<Answer> answers =
      devices_[static_cast<std::size_t>(device)]->answer(views, logits);
  if (!segments) return merge_images(answers);
  const View& view = views.front();
  const Answer& answer = answers.front();
  ImageOutcome outcome;
  if (merges) outcome = merge_pixels(views, answers, size);
  if (views_.augmentation().active()) return outcome;
  outcome.classes = size == view.size ? cropped(answer.classes, size_of(answer.shape), size)
                                      : LabelMap{size.height, size.width,
                                                 pixel_classes(map_of(view, answer, 0), size)};
  return outcome;
}

ImageOutcome Inference::merge_pixels(const std::vector<View>& views,
                                     const std::vector<Answer>& answers, Size size) const {
  const std::int64_t classes = answers.front().shape.channels();
  std::vector<float> sums(
      static_cast<std::size_t>(std::int64_t{size.height} * size.width * classes));
  std::int64_t count = 0;
  for (std::size_t i = 0; i < views.size(); ++i) {
    for (std::int64_t sample = 0; sample < answers[i].shape.batch(); ++sample, ++count) {
      add_probabilities(map_of(views[i], answers[i], sample), size, sums);
    }
  }
  divide(sums, count);
  return {{size.height, size.width, largest(sums, classes)}, std::move(sums)};
}

ImageOutcome Inference::merge_images(const std::vector<Answer>& answers) const {
  const auto classes = static_cast<std::size_t>(answers.front().shape.channels());
  std::vector<float> sums(classes), probabilities(classes);
  std::int64_t count = 0;
  for (const Answer& answer : answers) {
    for (std::size_t i = 0; i < answer.logits.size(); i += classes, ++count) {
      softmax({answer.logits.data() + i, classes}, probabilities.data());
      for (std::size_t c = 0; c < classes; ++c) sums[c] += probabilities[c];
    }
  }
  divide(sums, count);
  const bool one = count == 1;
  const auto label = one ? static_cast<Label>(answers.front().classes.front())
                         : largest(sums, static_cast<std::int64_t>(classes)).front();
  return {{1, 1, {label}}, std::move(sums)};
}

// The network of a GPU is quick beside what host threads do for an image; that of a CPU device
// needs one image to follow another, no more.
int Inference::workers() const {
  const auto devices = static_cast<int>(devices_.size());
  return on_gpus_ ? std::clamp(threads_per_replica(devices), 2, 16) : 2;
}

void Inference::for_each(std::int64_t count, const std::function<void(std::int64_t, int)>& work,
                         const std::atomic<bool>* stop) {
  const auto devices = static_cast<int>(devices_.size());
  for_each_index(
      count, workers() * devices,
      [&](std::int64_t index, int thread) { work(index, thread % devices); }, stop);
}

}  // namespace lockstep
