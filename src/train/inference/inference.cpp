#include "train/inference/inference.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "core/for_each_index.h"
#include "core/start_thread.h"
#include "data/resize.h"
#include "data/window_merge.h"
#include "lockstep/nn/predictor.h"
#include "lockstep/parallel/data_parallel.h"
#include "nn/argmax.h"

namespace lockstep {

/// The network's output for a view.
struct ViewPrediction {
  Shape shape = {};                   // [1 or 2, H, W, classes] or [1 or 2, classes]
  std::vector<float> logits;          // [shape]; empty where only classes were asked for
  std::vector<std::int32_t> classes;  // [shape without classes]: the first of the largest
};

/// A device with a thread of its own, which has the networks. Others wait for their turn.
class InferenceDevice {
 public:
  /// `threads`: of a CPU device. `scales`: how many TestTimeAugmentation has; each has a network of
  /// its own, so that images of one size plan none again. `model` outlives the device.
  InferenceDevice(const TrainedModel& model, const Device& device, int threads, std::size_t scales);
  ~InferenceDevice();

  /// Safe from several threads, which are served in turn. Throws what the network throws.
  std::vector<ViewPrediction> predict(std::span<const View> views, bool logits);

 private:
  using Networks = std::vector<std::unique_ptr<Predictor>>;
  using Job = std::packaged_task<std::vector<ViewPrediction>(Networks& networks)>;
  void serve();
  bool next(Job& job);
  Predictor& network_of(std::size_t scale, Networks& networks) const;
  ViewPrediction predict(const View& view, bool logits, Networks& networks) const;

  const TrainedModel& model_;
  const PredictorOptions options_;
  const std::size_t scales_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool ends_ = false;     // guarded by mutex_
  std::thread thread_;
};

// --- a device ---

InferenceDevice::InferenceDevice(const TrainedModel& model, const Device& device, int threads,
                                 std::size_t scales)
    : model_(model),
      options_{.device = device,
               .threads = threads,
               .norm = NormLayer(model.config.bn),
               .backend = {.tf32 = model.config.run.tf32}},
      scales_(scales),
      thread_(start_thread<std::thread>("for a device", [this] { serve(); })) {}

InferenceDevice::~InferenceDevice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::vector<ViewPrediction> InferenceDevice::predict(std::span<const View> views, bool logits) {
  Job job([this, views, logits](Networks& networks) {
    std::vector<ViewPrediction> predictions;
    for (const View& view : views) predictions.push_back(predict(view, logits, networks));
    return predictions;
  });
  std::future<std::vector<ViewPrediction>> predictions = job.get_future();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return predictions.get();
}

// Networks are made, used and destroyed on this thread: a backend belongs to one.
void InferenceDevice::serve() {
  Networks networks(scales_);
  for (Job job; next(job);) job(networks);
}

bool InferenceDevice::next(Job& job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
  if (jobs_.empty()) return false;
  job = std::move(jobs_.front());
  jobs_.pop_front();
  return true;
}

Predictor& InferenceDevice::network_of(std::size_t scale, Networks& networks) const {
  std::unique_ptr<Predictor>& network = networks[scale];
  if (network == nullptr) {
    network = std::make_unique<Predictor>(model_.architecture.model, model_.weights, options_);
  }
  return *network;
}

ViewPrediction InferenceDevice::predict(const View& view, bool logits, Networks& networks) const {
  const Prediction output = network_of(view.scale, networks).predict(view.images, view.shape);
  ViewPrediction prediction{output.shape, {}, {output.classes.begin(), output.classes.end()}};
  if (logits) prediction.logits.assign(output.logits.begin(), output.logits.end());
  return prediction;
}

// --- all of them ---

namespace {

Size size_of(const Shape& shape) {
  return {static_cast<int>(shape.height()), static_cast<int>(shape.width())};
}

LogitMap map_of(const View& view, const ViewPrediction& prediction, std::int64_t sample) {
  return {prediction.logits.data() + sample * prediction.shape.with_batch(1).elements(),
          size_of(prediction.shape), view.size, prediction.shape.channels(), sample == 1};
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

Image cropped(const RowBand& band, const WindowPlace& place) {
  Image piece;
  const Image& rows = band.rows();
  const ImagePart window{place.y - band.first(), place.x, place.size};
  Resizer().resize(rows, {rows.height, rows.width}, window, piece);
  return piece;
}

void divide(std::vector<float>& values, std::int64_t divisor) {
  for (float& value : values) value /= static_cast<float>(divisor);
}

}  // namespace

Inference::Inference(const TrainedModel& model, const std::vector<Device>& devices,
                     const InferenceOptions& options)
    : task_(model.architecture.task),
      classes_(class_count(model.config.data)),
      options_(options),
      views_(model.config.data, model.architecture.size_divisor, options.augmentation),
      on_gpus_(devices.front().kind == DeviceKind::kCuda) {
  const int threads = threads_per_replica(static_cast<int>(devices.size()));
  for (const Device& device : devices) {
    devices_.push_back(std::make_unique<InferenceDevice>(model, device, threads,
                                                         options.augmentation.scales.size()));
  }
}

Inference::~Inference() = default;

bool Inference::in_windows(Size image) const {
  return options_.windows.any() && task_ == Task::kSegmentation &&
         std::int64_t{image.height} * image.width >= options_.least_pixels;
}

ImagePrediction Inference::predict(int device, const Image& image, Size size, bool probabilities) {
  const Size whole{image.height, image.width};
  if (!in_windows(whole)) return predict_piece(device, image, size, probabilities);
  if (size == whole) return predict_windows(device, image, probabilities);
  ImagePrediction prediction = predict_windows(device, image, true);
  const LogitMap map{prediction.probabilities.data(), whole, whole, classes_};
  prediction.probabilities = interpolated(map, size);
  prediction.classes = {size.height, size.width, largest(prediction.probabilities, classes_)};
  return prediction;
}

ImagePrediction Inference::predict_windows(int device, const Image& image, bool probabilities) {
  ImagePrediction whole{{image.height, image.width, {}}, {}};
  const auto add = [&](const PredictedRows& rows) {
    std::vector<Label>& labels = whole.classes.pixels;
    labels.insert(labels.end(), rows.classes.begin(), rows.classes.end());
    if (!probabilities) return;
    std::vector<float>& values = whole.probabilities;
    values.insert(values.end(), rows.probabilities.begin(), rows.probabilities.end());
  };
  const auto rows = rows_of(image);
  predict_rows(device, {.rows = *rows}, add, &whole.mismatch);
  return whole;
}

bool Inference::predict_rows(int device, const WindowedImage& image,
                             const std::function<void(const PredictedRows&)>& use,
                             TileMismatch* mismatch) {
  const WindowGrid grid(image.rows.size(), options_.windows);
  RowBand band(image.rows, grid.window().height);
  WindowMerge merge(grid, classes_, options_.windows.blend, options_.compares_windows,
                    [&](int first, int count, std::span<const float> values) {
                      const std::vector<Label> classes = largest(values, classes_);
                      use({classes, values, band.rows(), first - band.first(), count});
                    });
  for (int row = 0; row < grid.rows(); ++row) {
    if (image.stop != nullptr && *image.stop) return false;
    const WindowPlace place = grid.at(row, 0);
    band.hold(place.y, place.y + place.size.height);
    predict_row(device, row, grid, image, band, merge);
  }
  if (mismatch != nullptr) *mismatch = merge.mismatch();
  return true;
}

// A window is merged as soon as those before it are, so that few are held.
void Inference::predict_row(int device, int row, const WindowGrid& grid, const WindowedImage& image,
                            const RowBand& band, WindowMerge& merge) {
  const auto devices = static_cast<int>(devices_.size());
  const int columns = grid.columns();
  std::vector<std::vector<float>> said(static_cast<std::size_t>(columns));
  std::mutex mutex;  // of `said`, `next` and the merge
  int next = 0;
  for_each_index(columns, workers() * devices, [&](std::int64_t column, int thread) {
    const WindowPlace place = grid.at(row, static_cast<int>(column));
    Image window = cropped(band, place);
    if (image.prepare) image.prepare(window);
    std::vector<float> probabilities =
        predict_piece((device + thread) % devices, window, place.size, true).probabilities;
    const std::lock_guard lock(mutex);
    said[static_cast<std::size_t>(column)] = std::move(probabilities);
    while (next < columns && !said[static_cast<std::size_t>(next)].empty()) {
      const int merged = next++;
      merge.add(std::exchange(said[static_cast<std::size_t>(merged)], {}),
                grid.at(row, merged).size.width);
    }
  });
}

ImagePrediction Inference::predict_piece(int device, const Image& image, Size size,
                                         bool probabilities) {
  const std::vector<View> views = views_.of(image);
  const bool segments = task_ == Task::kSegmentation;
  const bool merges = probabilities || views_.augmentation().active();
  const bool logits = !segments || merges || size != views.front().size;
  const std::vector<ViewPrediction> predictions =
      devices_[static_cast<std::size_t>(device)]->predict(views, logits);
  if (!segments) return merge_images(predictions);
  const View& view = views.front();
  const ViewPrediction& prediction = predictions.front();
  ImagePrediction result;
  if (merges) result = merge_pixels(views, predictions, size);
  if (views_.augmentation().active()) return result;
  result.classes = size == view.size ? cropped(prediction.classes, size_of(prediction.shape), size)
                                     : LabelMap{size.height, size.width,
                                                pixel_classes(map_of(view, prediction, 0), size)};
  return result;
}

ImagePrediction Inference::merge_pixels(const std::vector<View>& views,
                                        const std::vector<ViewPrediction>& predictions,
                                        Size size) const {
  const std::int64_t classes = predictions.front().shape.channels();
  std::vector<float> sums(
      static_cast<std::size_t>(std::int64_t{size.height} * size.width * classes));
  std::int64_t count = 0;
  for (std::size_t i = 0; i < views.size(); ++i) {
    for (std::int64_t sample = 0; sample < predictions[i].shape.batch(); ++sample, ++count) {
      add_probabilities(map_of(views[i], predictions[i], sample), size, sums);
    }
  }
  divide(sums, count);
  return {{size.height, size.width, largest(sums, classes)}, std::move(sums)};
}

ImagePrediction Inference::merge_images(const std::vector<ViewPrediction>& predictions) const {
  const auto classes = static_cast<std::size_t>(predictions.front().shape.channels());
  std::vector<float> sums(classes), probabilities(classes);
  std::int64_t count = 0;
  for (const ViewPrediction& prediction : predictions) {
    for (std::size_t i = 0; i < prediction.logits.size(); i += classes, ++count) {
      softmax({prediction.logits.data() + i, classes}, probabilities.data());
      for (std::size_t c = 0; c < classes; ++c) sums[c] += probabilities[c];
    }
  }
  divide(sums, count);
  const bool one = count == 1;
  const auto label = one ? static_cast<Label>(predictions.front().classes.front())
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
