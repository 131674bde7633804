#include "train/inference/predict_images.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/seconds_since.h"
#include "core/utf8.h"
#include "data/normalize.h"
#include "data/resize.h"
#include "io/atomic_file.h"
#include "io/image_io.h"
#include "io/npy.h"
#include "io/row_source.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "lockstep/io/image.h"
#include "run/exit_code.h"
#include "train/inference/inference.h"
#include "train/inference/prediction_writer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTable = "predictions.csv";

/// What went wrong with an image, beginning with its name, and its size where it was read.
std::string failure_of(const PredictedImage& image, const std::string& error) {
  const std::string name = image.image.string();
  if (error.starts_with(name)) return error;
  if (image.size == Size{}) return concat(name, ": ", error);
  return concat(name, ", ", to_string(image.size), ": ", error);
}

/// Heights and widths; zeros for a file that is told of when its turn comes.
using Sizes = std::vector<std::pair<int, int>>;

Sizes sizes_of(const std::vector<fs::path>& images, const ImageRule& rule) {
  Sizes sizes;
  for (const fs::path& image : images) {
    auto& [height, width] = sizes.emplace_back();
    try {
      const Size size = read_image_size(image, rule);
      height = size.height;
      width = size.width;
    } catch (const DataError&) {
    }
  }
  return sizes;
}

/// The images' numbers, those of one size one after another: a network is planned for a size.
std::vector<std::size_t> order_by_size(const Sizes& sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] < sizes[b]; });
  return order;
}

/// What the network is shown of an image. Maps are of the whole image, so no crop of data.val_crop.
ResizeRule rule_of(const TrainedModel& model) {
  ResizeRule rule = resize_rule(model.config.data, Split::kVal);
  if (model.architecture.task == Task::kSegmentation) rule.center_crop.reset();
  return rule;
}

/// Of larger images in one piece a network takes gigabytes.
constexpr std::int64_t kMostInOnePiece = 4'000'000;  // pixels

/// Those of the configuration, or what large images come in without.
WindowOptions windows_of(const TrainedModel& model) {
  WindowOptions windows = model.config.windows(model.config.bn.eval_stats);
  if (!windows.any()) windows.window = {512, 512};
  return windows;
}

/// That images come in windows which nobody asked for; empty: none does.
std::string tell_windows(const TrainedModel& model, const Sizes& sizes) {
  if (model.config.eval.window || model.architecture.task != Task::kSegmentation) return "";
  const auto large = std::ranges::count_if(sizes, [](const auto& size) {
    return std::int64_t{size.first} * size.second >= kMostInOnePiece;
  });
  if (large == 0) return "";
  const WindowOptions windows = windows_of(model);
  return concat("images of 4 million pixels and more (", large, " of ", sizes.size(),
                ") are predicted in windows of ", to_string(windows.window),
                windows.blend == Blend::kCrop
                    ? ""
                    : ", which this network normalises one by one: the map is not that of a "
                      "single piece",
                "; --window chooses others");
}

/// One call of predict_images.
class PredictionRun {
 public:
  PredictionRun(const PredictRequest& request, const TrainedModel& model,
                const std::vector<Device>& devices, PredictReport& report)
      : request_(request),
        report_(report),
        segments_(model.architecture.task == Task::kSegmentation),
        rule_(rule_of(model)),
        data_(model.config.data),
        look_{
            .classes = report.classes.size(), .display = data_.display, .rule = image_rule(data_)},
        inference_(model, devices,
                   {.augmentation = request.augmentation,
                    .windows = windows_of(model),
                    .least_pixels = model.config.eval.window ? 0 : kMostInOnePiece}) {
    if (segments_) look_.colors = class_colors(model.config.data);
    if (request.submission) look_.values = submission_values(model.config.data);
  }

  void run(const std::vector<PredictionFiles>& files, const Sizes& sizes);

 private:
  void predict(PredictedImage& report, const PredictionFiles& files, int device);
  bool predict_piece(PredictedImage& report, const PredictionFiles& files, int device);
  bool predict_rows(PredictedImage& report, const PredictionFiles& files, int device);
  ImagePrediction shown(const Image& image, Size size, int device);
  void write(const Image& image, const ImagePrediction& prediction, const PredictionFiles& files,
             PredictedImage& report);
  void count(const std::vector<std::int64_t>& counts);
  void tell_progress();

  const PredictRequest& request_;
  PredictReport& report_;
  bool segments_;
  ResizeRule rule_;
  const DataOptions& data_;
  PredictionLook look_;
  Inference inference_;
  std::mutex large_;  // one at a time: all devices work on it, and several take memory
  std::mutex mutex_;  // of what all images share of the report
  std::int64_t seen_ = 0;
};

void PredictionRun::run(const std::vector<PredictionFiles>& files, const Sizes& sizes) {
  const std::vector<std::size_t> order = order_by_size(sizes);
  const auto start = std::chrono::steady_clock::now();
  inference_.for_each(
      static_cast<std::int64_t>(order.size()),
      [&](std::int64_t i, int device) {
        const std::size_t index = order[static_cast<std::size_t>(i)];
        predict(report_.images[index], files[index], device);
        tell_progress();
      },
      request_.stop);
  report_.seconds = seconds_since(start);
}

// Where the image is the cause, the report says why, and the others go on.
void PredictionRun::predict(PredictedImage& report, const PredictionFiles& files, int device) {
  try {
    const Size size = read_image_size(report.image, look_.rule);
    const bool rows = !rule_.changes_images() && inference_.in_windows(size);
    report.done = rows ? predict_rows(report, files, device) : predict_piece(report, files, device);
    if (report.done) report.files = files;
  } catch (const CannotWrite&) {
    throw;
  } catch (const std::exception& error) {
    report.error = failure_of(report, error.what());
    report.exit_code = exit_code_of(error);
  }
}

bool PredictionRun::predict_rows(PredictedImage& report, const PredictionFiles& files, int device) {
  const auto rows = open_rows(report.image, look_.rule);
  report.size = rows->size();
  std::unique_lock turn(large_, std::defer_lock);
  if (std::int64_t{report.size.height} * report.size.width >= kMostInOnePiece) turn.lock();
  const ImagePreparation preparation(data_, report.image.string(), bands_of(*rows));
  PredictionWriter writer(look_, files, report.image, *rows);
  LongWork work(concat("predicting ", report.image.string()), "rows", report.size.height);
  const bool done =
      inference_.predict_rows(device,
                              {.rows = *rows,
                               .prepare = [&](Image& window) { preparation.apply(window); },
                               .stop = request_.stop},
                              [&](const PredictedRows& some) {
                                writer.write(some);
                                work.advance(some.count);
                              });
  if (!done) return false;
  writer.close();
  count(writer.counts());
  return true;
}

bool PredictionRun::predict_piece(PredictedImage& report, const PredictionFiles& files,
                                  int device) {
  Image image;
  read_image(report.image, image, look_.rule);
  report.size = {image.height, image.width};
  Image prepared;
  const bool by_image = normalizes_by_image(data_);
  if (by_image) prepared = image;
  Image& input = by_image ? prepared : image;
  prepare_image(data_, report.image.string(), input);
  const ImagePrediction prediction = shown(input, report.size, device);
  write(image, prediction, files, report);
  return true;
}

ImagePrediction PredictionRun::shown(const Image& image, Size size, int device) {
  const bool probabilities = request_.probabilities || !segments_;
  if (!rule_.changes_images()) {
    return inference_.predict(device, image, size, probabilities);
  }
  const ImageGeometry geometry = rule_.geometry(size);
  Image resized;
  Resizer().resize(image, geometry.full, geometry.window, resized);
  return inference_.predict(device, resized, size, probabilities);
}

void PredictionRun::write(const Image& image, const ImagePrediction& prediction,
                          const PredictionFiles& files, PredictedImage& report) {
  if (!segments_) {
    report.top = likeliest(prediction.probabilities);
    std::vector<std::int64_t> counts(look_.classes);
    ++counts.at(prediction.classes.pixels.front());
    if (!files.probabilities.empty()) {
      write_npy(files.probabilities, {static_cast<std::int64_t>(look_.classes)},
                prediction.probabilities);
    }
    return count(counts);
  }
  const auto rows = rows_of(image);
  PredictionWriter writer(look_, files, report.image, *rows);
  writer.write({prediction.classes.pixels, prediction.probabilities, image, 0, image.height});
  writer.close();
  count(writer.counts());
}

void PredictionRun::count(const std::vector<std::int64_t>& counts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t c = 0; c < counts.size(); ++c) report_.counts[c] += counts[c];
}

void PredictionRun::tell_progress() {
  const std::lock_guard lock(mutex_);
  ++seen_;
  if (request_.progress) {
    request_.progress(seen_, static_cast<std::int64_t>(report_.images.size()));
  }
}

void count_images(PredictReport& report) {
  for (const PredictedImage& image : report.images) {
    report.done += image.done ? 1 : 0;
    report.failed += image.error.empty() ? 0 : 1;
  }
}

std::string rows_of(const PredictReport& report) {
  std::ostringstream stream;
  stream << "image,rank,class,name,probability\n";
  stream.precision(9);  // of every float
  for (const PredictedImage& image : report.images) {
    for (std::size_t i = 0; i < image.top.size(); ++i) {
      const ClassScore& score = image.top[i];
      stream << csv_cell(image.image.string()) << ',' << i + 1 << ',' << score.label << ','
             << csv_cell(report.classes[score.label]) << ',' << score.probability << '\n';
    }
  }
  return stream.str();
}

/// Writes report.table: a line for each of an image's likeliest classes, rank 1 first.
void write_prediction_table(const PredictReport& report) {
  const std::string rows = rows_of(report);
  const std::string_view bytes = rows;
  write_parts(report.table, {&bytes, 1});
}

/// All files that the request will write.
std::vector<fs::path> all_files(const std::vector<PredictionFiles>& images, const fs::path& table) {
  std::vector<fs::path> files;
  if (!table.empty()) files.push_back(table);
  for (const PredictionFiles& image : images) {
    for (const fs::path& file : image.all()) files.push_back(file);
  }
  return files;
}

}  // namespace

std::vector<Label> submission_values(const DataOptions& data) {
  const std::vector<Label>& values = find_layout(data).file_values;
  if (static_cast<int>(values.size()) == class_count(data)) return values;
  std::string names;
  for (const DataLayout& layout : *data.layouts) {
    if (!layout.file_values.empty()) names += (names.empty() ? "" : ", ") + layout.name;
  }
  throw ConfigError(concat("--submission: expected data.layout to be one whose server takes other ",
                           "values than classes (", names, "), and all of its classes; got ",
                           class_count(data), " classes of ", data.layout,
                           "; maps without --submission have the classes as they are"));
}

PredictReport predict_images(const PredictRequest& request) {
  PredictReport report;
  std::vector<std::string> left_out;
  const TrainedModel model = read_trained_model({.target = request.target,
                                                 .config = request.config,
                                                 .overrides = request.overrides,
                                                 .tables = request.tables,
                                                 .computes = true});
  const std::vector<fs::path> images =
      find_images(request.images, model.config.data.channel_files, left_out);
  for (const fs::path& image : images) report.images.emplace_back().image = image;
  report.checkpoint = model.checkpoint;
  report.warnings = model.warnings;
  report.warnings.insert(report.warnings.end(), left_out.begin(), left_out.end());
  report.task = model.architecture.task;
  report.classes = class_names(model.config.data);
  report.counts.resize(report.classes.size());
  report.devices = devices_or_default(request.devices);
  const std::vector<Device> devices = parse_devices(report.devices);
  report.iteration = model.iteration;

  const Sizes sizes = sizes_of(images, image_rule(model.config.data));
  const std::string told = tell_windows(model, sizes);
  if (!told.empty()) report.warnings.push_back(told);
  const bool segments = report.task == Task::kSegmentation;
  const std::vector<std::string>& ends = model.config.data.channel_files;
  const std::vector<PredictionFiles> files =
      prediction_files(images, request.output,
                       {.map = segments,
                        .overlay = segments && request.overlay && !request.submission,
                        .probabilities = request.probabilities,
                        .tiff = !request.submission,
                        .left_off = ends.empty() ? "" : ends.front()});
  if (!segments) report.table = request.output / kTable;
  if (request.submission) submission_values(model.config.data);  // or nothing is made
  make_output_folder(request.output);
  if (!request.force) check_absent(all_files(files, report.table));

  PredictionRun(request, model, devices, report).run(files, sizes);
  count_images(report);
  if (!segments) write_prediction_table(report);
  return report;
}

}  // namespace lockstep
