#include "train/inference/prediction_writer.h"

#include <utility>

#include "data/formats/file_pairs.h"

namespace lockstep {
namespace {

/// Calls `use`; what cannot be written is told apart from what cannot be read.
template <typename Use>
void write_or_say(const Use& use) {
  try {
    use();
  } catch (const DataError&) {
    throw;
  } catch (const Error& error) {
    throw CannotWrite(error.what());
  }
}

Image rows_in(const PredictedRows& rows) {
  Image part;
  rows_of(rows.band)->read(rows.offset, rows.count, part);
  return part;
}

}  // namespace

PredictionWriter::PredictionWriter(const PredictionLook& look, const PredictionFiles& files,
                                   const std::filesystem::path& image, RowSource& rows)
    : look_(look),
      size_(rows.size()),
      says_missing_(has_extension(files.map, {".tif"})),
      counts_(look.classes) {
  Image sample;
  rows.read(0, 1, sample);
  if (!files.overlay.empty()) picture_.emplace(sample, bands_of(rows), look.display);
  write_or_say([&] {
    if (!files.map.empty()) map_ = map_of(files.map, image, !sample.floats.empty());
    if (!files.overlay.empty()) overlay_.emplace(files.overlay, size_);
    if (files.probabilities.empty()) return;
    probabilities_.emplace(files.probabilities, static_cast<std::int64_t>(look.classes), size_);
  });
}

std::unique_ptr<MapWriter> PredictionWriter::map_of(const std::filesystem::path& file,
                                                    const std::filesystem::path& image,
                                                    bool missing) const {
  if (!says_missing_)
    return png_map(file, size_, look_.values.empty() ? look_.colors : std::vector<Color>());
  return tiff_map(file, size_, look_.colors, missing, georeference_of(image, look_.rule));
}

void PredictionWriter::write(const PredictedRows& rows) {
  const LabelMap labels = labels_of(rows);
  for (const Label label : labels.pixels) {
    if (label != kMissingLabel) ++counts_.at(label);
  }
  write_or_say([&] {
    if (map_) write_map(labels);
    if (overlay_) write_overlay(rows, labels);
    if (probabilities_) probabilities_->write(rows.probabilities);
  });
}

LabelMap PredictionWriter::labels_of(const PredictedRows& rows) const {
  LabelMap labels{rows.count, size_.width, {rows.classes.begin(), rows.classes.end()}};
  if (!says_missing_ || rows.band.floats.empty()) return labels;
  const std::size_t first =
      static_cast<std::size_t>(rows.offset) * static_cast<std::size_t>(size_.width);
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    if (is_missing(rows.band, first + i)) labels.pixels[i] = kMissingLabel;
  }
  return labels;
}

void PredictionWriter::write_map(const LabelMap& labels) {
  if (look_.values.empty()) return map_->write(labels.pixels);
  std::vector<Label> values = labels.pixels;
  for (Label& value : values) value = look_.values[value];
  map_->write(values);
}

void PredictionWriter::write_overlay(const PredictedRows& rows, const LabelMap& labels) {
  overlay_->write(overlay(picture_->of(rows_in(rows)), labels, look_.colors));
}

void PredictionWriter::close() {
  write_or_say([&] {
    if (map_) map_->close();
    if (overlay_) overlay_->close();
    if (probabilities_) probabilities_->close();
  });
}

}  // namespace lockstep
