#include "app/data_preview.h"

#include <fmt/format.h>

#include "data/denormalize.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/io/image.h"
#include "train/inference/image_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

LabelMap labels_of(const Batch& batch, std::size_t place) {
  LabelMap labels{batch.size.height, batch.size.width, {}};
  const std::size_t pixels = batch.labels.size() / batch.samples.size();
  const auto first = batch.labels.begin() + static_cast<std::ptrdiff_t>(place * pixels);
  labels.pixels.assign(first, first + static_cast<std::ptrdiff_t>(pixels));
  return labels;
}

/// A class's name as part of a file's.
std::string file_word(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == ' ') c = '_';
  }
  return name;
}

void write_sample(const Batch& batch, std::size_t place, const Config& config,
                  const std::string& stem) {
  const Image image = denormalize(batch, place, config.data);
  if (find_layout(config.data).task == Task::kClassification) {
    const Label label = batch.labels[place];
    const auto classes = class_names(config.data);
    const std::string name = label < classes.size() ? classes[label] : "ignored";
    write_png(stem + "_" + file_word(name) + ".png", image);
    return;
  }
  const LabelMap labels = labels_of(batch, place);
  const std::vector<Color> colors = class_colors(config.data);
  write_png(stem + "_image.png", image);
  write_png(stem + "_labels.png", labels, colors);
  write_png(stem + "_overlay.png", overlay(image, labels, colors));
}

}  // namespace

std::vector<std::string> preview_data(const Config& config, std::int64_t count,
                                      const fs::path& folder) {
  if (folder.empty()) throw ConfigError("data preview: expected -o DIR, the folder to write to");
  make_output_folder(folder);
  TrainLoader loader(config.data, {.batch = 1, .seed = config.run.seed});
  std::vector<std::string> samples;
  for (std::int64_t i = 0; i < count; ++i) {
    const Batch& batch = loader.next();
    write_sample(batch, 0, config, (folder / fmt::format("{:03}", i)).string());
    samples.push_back(loader.dataset().describe(batch.samples[0]));
  }
  return samples;
}

}  // namespace lockstep
